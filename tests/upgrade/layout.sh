#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the BPF object of a layout that never was, so that upgrades can be tested before there is one: schema 7, with tables
# whose fields come in another order and whose rows have other sizes. Writes testdata/layout7.
set -eu
cd "$(dirname "$0")"
rm -rf source testdata/layout7
mkdir -p testdata/layout7
cp -r ../../bpf source
trap 'rm -rf source' EXIT
types=source/lib/types.h

# reversed: structs whose fields go in the opposite order. grown: those that get one more field in front.
awk -v reversed=" frontend_key record side flow affinity_key affinity_value sock_value sock_peer " \
    -v grown=" backend record settings affinity_value name_value sock_value sock_peer backend_counter " '
	/^struct [a-z_0-9]+ \{$/ {
		name = $2
		print
		if (index(grown, " " name " ")) print "\t__u64 future;"
		turn = index(reversed, " " name " ")
		count = 0
		next
	}
	name != "" && /^};$/ {
		while (count > 0) print line[count--]
		print
		name = ""
		next
	}
	name != "" && turn { line[++count] = $0; next }
	# sizes that were meant to be
	/^_Static_assert\(sizeof\(struct (backend|record|affinity_value|sock_value|sock_peer|sock_row|slot_line|side)\)/ { next }
	{ print }
' ../../bpf/lib/types.h >$types
sed -i -e 's/^#define SLOTS_PER_LINE .*/#define SLOTS_PER_LINE 8/' -e 's/SCHEMA_VERSION = [0-9]*/SCHEMA_VERSION = 7/' -e 's/char text\[256\]/char text[320]/' $types
for changed in 'SLOTS_PER_LINE 8' 'SCHEMA_VERSION = 7' 'char text.320'; do
	grep -q "$changed" $types || { echo "types.h is not as this script knows it: no $changed" >&2; exit 1; }
done
test "$(grep -c '__u64 future;' $types)" = 8 || { echo "types.h is not as this script knows it: structs" >&2; exit 1; }

# the flags of pkg/bpf, another place
flags=$(sed -n 's/^.*-cc \(.*\) Nearlb .*$/\1/p' ../../pkg/bpf/gen.go | sed 's#-I../../bpf/include#-Isource/include#')
eval "GOPACKAGE=bpf go tool bpf2go -output-dir testdata/layout7 -cc $flags Nearlb source/nearlb.c"
