#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures what the agent costs at many Services, and kube-proxy beside it where tests/cluster has built it, or what many changes leave, and
# prints the table. Arguments: the nearlb binary; a page; the marks of it between which the table is put, scale (not without kube-proxy) or
# churn, or nothing; flags of tests/scale.
set -eu
binary=$1
page=$2
marks=$3
shift 3
kubernetes=${KUBERNETES-${XDG_CACHE_HOME:-$HOME/.cache}/nearlb-test/kubernetes} # KUBERNETES= leaves kube-proxy out
if [ -n "$kubernetes" ] && [ ! -x "$kubernetes" ]; then
	echo "without kube-proxy: make cluster builds it" >&2
	kubernetes=
fi
if [ "$marks" = scale ] && [ -z "$kubernetes" ]; then marks=; fi
table=$(mktemp)
program=$(mktemp)
trap 'rm -f "$table" "$program"' EXIT
"${GO:-go}" build -o "$program" ./tests/scale
"$program" -nearlb "$binary" -kube-proxy "$kubernetes" "$@" >"$table"
if [ -n "$marks" ]; then "$(dirname "$0")/between.sh" "$page" "$marks" "$table"; fi
cat "$table"
