#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Measures the datapath beside an older one's. Arguments: the nearlb binary, a commit or a binary from before, how many rounds. A commit's
# binary is kept in bin/.
set -eu
new=$1
old=$2
rounds=$3
if test -z "$old"; then
	echo "bench-pair: want OLD=COMMIT or OLD=BINARY" >&2
	exit 2
fi
if ! test -f "$old"; then
	commit=$(git rev-parse --verify --short "$old^{commit}")
	old=bin/nearlb-$commit
	if ! test -f "$old"; then
		tree=$(mktemp -d)
		trap 'git worktree remove --force "$tree"' EXIT
		git worktree add -q --detach "$tree" "$commit"
		(cd "$tree" && "$GO" build -o "$OLDPWD/$old" ./cmd/nearlb)
	fi
fi
"$GO" run ./tests/benchpair -old "./$old" -new "$new" -rounds "$rounds"
