#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures the datapath and puts the table between the bench marks of a page. Arguments: the nearlb binary, the page.
set -eu
binary=$1
page=$2
table=$(mktemp)
new=$(mktemp)
trap 'rm -f "$table" "$new"' EXIT
"$binary" bench -o markdown >"$table"
awk -v table="$table" '
	/^<!-- bench: / { print; while ((getline line < table) > 0) print line; skip = 1 }
	/^<!-- \/bench -->/ { skip = 0 }
	!skip { print }
' "$page" >"$new"
cat "$new" >"$page"
cat "$table"
