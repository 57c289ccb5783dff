#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures what paths carry, and kube-proxy's beside it, and prints the tables. Arguments: a page; the marks of it between which the tables are
# put, or nothing; the program that has kube-proxy, or nothing; how long each measurement lasts, how often it is made, and the limit for all.
set -eu
page=$1
marks=$2
kubernetes=$3
if [ -n "$kubernetes" ] && [ ! -x "$kubernetes" ]; then kubernetes=; fi
if [ -z "$kubernetes" ]; then
	echo "without kube-proxy: make cluster builds it" >&2
	marks=
fi
tables=$(mktemp)
trap 'rm -f "$tables"' EXIT
NEARLB_BENCH_PATHS=$4 NEARLB_BENCH_ROUNDS=$5 NEARLB_BENCH_KUBE_PROXY=$kubernetes NEARLB_BENCH_TABLES=$tables NEARLB_REQUIRE_PRIVILEGED=1 \
	"${GO:-go}" test -count=1 -timeout "$6" -run TestBenchPaths ./tests/hosts >&2
if [ -n "$marks" ]; then "$(dirname "$0")/between.sh" "$page" "$marks" "$tables"; fi
cat "$tables"
