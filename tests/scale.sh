#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures what the agent costs at many Services, and kube-proxy beside it where tests/cluster has built it, and prints the table. A run
# with kube-proxy and without further arguments puts it between the scale marks of a page. Arguments: the nearlb binary, the page, flags of tests/scale.
set -eu
binary=$1
page=$2
shift 2
kubernetes=${KUBERNETES-${XDG_CACHE_HOME:-$HOME/.cache}/nearlb-test/kubernetes} # KUBERNETES= leaves kube-proxy out
if [ -n "$kubernetes" ] && [ ! -x "$kubernetes" ]; then
	echo "without kube-proxy: make cluster builds it" >&2
	kubernetes=
fi
write=
if [ -n "$kubernetes" ] && [ $# -eq 0 ]; then write=yes; fi
table=$(mktemp)
new=$(mktemp)
program=$(mktemp)
trap 'rm -f "$table" "$new" "$program"' EXIT
"${GO:-go}" build -o "$program" ./tests/scale
"$program" -nearlb "$binary" -kube-proxy "$kubernetes" "$@" >"$table"
if [ -n "$write" ]; then
	awk -v table="$table" '
		/^<!-- scale: / { print; while ((getline line < table) > 0) print line; skip = 1 }
		/^<!-- \/scale -->/ { skip = 0 }
		!skip { print }
	' "$page" >"$new"
	cat "$new" >"$page"
fi
cat "$table"
