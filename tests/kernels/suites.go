// SPDX-License-Identifier: Apache-2.0

package main

// suite is a package whose tests run in the guests.
type suite struct {
	pkg     string
	only    string // tests to run; "": all
	without string // tests left out, of those
	why     string // they are left out
}

// suites are what `make test-kernels` runs. What a kernel may do otherwise than another is the verifier, helpers, hooks and
// devices; the tests left out are those that are long, and about nothing of that. Emulation is ten to twenty times slower than
// this machine.
var suites = []suite{
	{pkg: "pkg/bpf", only: "Verifier|Probe|Kernel|AskedSizes|EthernetHeader|Stack|PinsItsOwnPrograms"},
	{pkg: "pkg/attach"},
	{pkg: "pkg/maps", only: "Kernel|Pinned"},
	{pkg: "tests/sockets"},
	{pkg: "tests/packet", without: "TestConnectionsThroughSNATAreNeverTakenForOneAnother|TestPacketsCutAtEveryByte|TestProcessors|" +
		"TestSharesAreWithinOnePercentOfEqual|TestRepliesGiveBackExactly|TestTheFlowTableNeverHoldsTwo|TestPacketsWithChangedBytes|TestAFlood",
		why: "properties, stress, floods and shares: long"},
	{pkg: "tests/hosts", only: "TestSCTP|TestEveryStepOfTheDemoComesOutAsItShould/line_by_line"},
}

// skip is a test that a kernel cannot run.
type skip struct {
	kernel string // "": every one
	pkg    string
	test   string
	reason string
}

// skips is the whole list: any other skipped test is a failure, and so is one of these that is not skipped.
var skips = []skip{}
