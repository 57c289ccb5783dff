#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target of the module for the time given as argument.
set -eu
time=${1:-30s}
grep -rl --include='*_test.go' '^func Fuzz' cmd pkg tests | sort | while read -r file; do
	package=./$(dirname "$file")
	sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$file" | while read -r target; do
		echo "== $package $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 50x "$package"
	done
done
