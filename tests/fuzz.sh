#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Holds every property against worlds that nobody saw before, then runs every fuzz target for the time given as argument.
set -eu
grep -rl --include='*_test.go' -e 'rapid\.Check(' -e 'worlds\.Check(' pkg tests/differential tests/packet | xargs -n 1 dirname | sort -u | while read -r package; do
	echo "== $package: properties"
	RAPID_SEED=0 go test -count=1 -timeout 1h "./$package"
done
echo "== tests/packet: stress with 10^8 packets, shares and cuts, the long way"
go test -count=1 -timeout 1h ./tests/packet -stressed=3200000 -picked=1000000 -cuts=1 -run 'TestProcessors|TestSharesAre|TestPacketsCut'
echo "== tests/faults: kills, the long way"
go test -count=1 -timeout 1h ./tests/faults -kills=400 -run TestAnAgentKilledAtAnyWrite
echo "== pkg/agent: agents that start again as processes, under the race detector"
CGO_ENABLED=1 go test -race -count=1 -timeout 1h ./pkg/agent -run 'TestARestart|TestTablesAreMadeAsLarge|TestAnAgentWorksWithTheTables|TestALoaderLoads|TestASecondAgent|TestAColdStart|TestAfterAFirstPublication|TestAnAgentThatComesBack|TestAnAgentThatMayNotLook'
echo "== pkg/cli: causes that nearlb why names, a thousand of them"
RAPID_SEED=0 go test -count=1 ./pkg/cli -planted=1000 -run TestAPlantedFault
echo "== tests/oracle: worlds"
(cd tests/oracle && RAPID_SEED=0 go test -count=1 -timeout 1h .)
time=${1:-30s}
grep -rl --include='*_test.go' '^func Fuzz' cmd pkg tests | sort | while read -r file; do
	package=./$(dirname "$file")
	sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$file" | while read -r target; do
		echo "== $package $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 50x "$package"
	done
done
