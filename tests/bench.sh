#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures the datapath and puts the table between the bench marks of a page. Arguments: the nearlb binary, the page.
set -eu
binary=$1
page=$2
table=$(mktemp)
trap 'rm -f "$table"' EXIT
"$binary" bench --flows 1,10000,100000,1000000 -o markdown >"$table"
"$(dirname "$0")/between.sh" "$page" bench "$table"
cat "$table"
