#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make verify in a copy of what is here and not ignored: what is generated there disturbs nobody who compiles here meanwhile.
set -eu
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
	test ! -e "$file" || printf '%s\0' "$file"
done | tar -c --null -T - | tar -x -C "$copy"
cd "$copy"
git init -q
git add -A
git -c user.name=nearlb -c user.email=nearlb@localhost commit -q -m copy
"${MAKE:-make}" -s verify
