#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts a file between marks of a page, in the place of what was there. Arguments: the page, the name of the marks, the file.
set -eu
page=$1
new=$(mktemp)
trap 'rm -f "$new"' EXIT
awk -v marks="$2" -v file="$3" '
	index($0, "<!-- " marks ": ") == 1 { print; while ((getline line < file) > 0) print line; skip = 1 }
	index($0, "<!-- /" marks " -->") == 1 { skip = 0 }
	!skip { print }
' "$page" >"$new"
cat "$new" >"$page"
