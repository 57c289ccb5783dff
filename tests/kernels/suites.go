// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
	"strings"
)

// suite is a package whose tests run in the guests.
type suite struct {
	pkg     string
	only    string // tests to run; "": all
	without string // tests left out, of those
	why     string // they are left out
	quick   string // tests to run with -quick; "": all of them
	loads   string // tests that load programs of their own, or send very many packets, which takes half a minute each: -quick leaves them out
	env     string // with -quick
	worlds  int    // of each property, with -quick; 0: as many as elsewhere
	oldest  bool   // -quick runs it on the oldest kernel alone: it takes long, and newer ones differ less from this machine's
}

// suites are what `make test-kernels` runs. What a kernel may do otherwise than another is the verifier, helpers, hooks and
// devices; the tests left out are those that are long, and about nothing of that. Emulation is ten to twenty times slower than
// this machine.
var suites = []suite{
	{pkg: "pkg/bpf", only: "Verifier|Probe|Kernel|Stack"},
	{pkg: "pkg/attach", oldest: true}, // newer ones have TCX, as this machine has
	{pkg: "pkg/maps", only: "Kernel", worlds: 5, oldest: true},
	{pkg: "tests/sockets", without: "TestSocketsOfOtherNamespacesAreServedOnlyWhenAllAre/all", why: "the same programs by a flag: the default is run",
		oldest: true},
	{pkg: "tests/packet", without: "TestRandomHistories|TestConnectionsThroughSNATAreNeverTakenForOneAnother|TestPacketsCutAtEveryByte|TestProcessors|" +
		"TestSharesAreWithinOnePercentOfEqual|TestRepliesGiveBackExactly|TestTheFlowTable|FullBlock|ItsPortsBlocks|FillsTheTable|FillTheTable|TestPacketsWithChangedBytes|TestAFlood|" +
		"TestOnePortServesConnections|TestICMPErrorsAreLimited|TestWhatICMPsLimit|TestAClashingConnectionLasts|TestFramesShorterThan",
		loads: "TestASumOfTheWholePacket|TestRepliesThatNoFlowHasPass|TestDirectTraffic|TestEntriesWhoseWriter|TestAFullSet|TestQuestionsGoTo|" +
			"TestNobodyAsksAResponder|TestSessionAffinityKeepsNobody|TestAResponderAnswers|TestTheNodesOwnQuestions|TestAForgottenConnection|" +
			"TestAPortIsHeld|TestHeldPortsServe|TestThePortThatIsFree|TestAPortThatItsServer|TestAPortOfA|TestAFloodLeavesHeld|TestEveryPortOfTheRange|" +
			"TestAServersNodeRemembers|TestErrorsAboutRoutedPacketsAreLimited|TestADrainingNodeMakes|TestAnEntryWhoseWriter|TestPacketsOfConnectionsInFormer|" +
			"TestASYNThatComesAgain|TestTheConnectionsOfOneBackend|TestABackendThatDidNotAnswer|TestAQuestionThatTheResponder|TestAnAnswerIsNotLate|" +
			"TestAffinityStaysWith|TestAffinityLeaves|TestASYNWithOtherFlags|TestASYNStaysInTheList|TestASYNThroughSNATLeaves|TestALostFlowThatWasRetried|" +
			"TestPortsBeyondTheRangeServeNobody|TestAPortOfConnectionTracking|TestAConnectionBeyondTheRange|TestAClientGetsItsOwn|TestASocketOfTheHost|" +
			"TestAnAnswerToAnybodyEnds|TestNewConnectionsLeave|TestWhereAllAreLeft|TestOneConnectionTries|TestAnotherEndpointsTime|TestClientsThatNeverGoOn|" +
			"TestAFlowWhoseBackendHangs|TestDatagramsThatMayYet|TestAffinityMovesWith|TestTurnsPassOver|TestWithAffinityAClientTakes|" +
			"TestLossIsNoEvidence|TestAnAnswerWhoseSYN|TestClientsOffTheNodeLeave|TestTwoPodsThatFill|TestSNATWithFewPorts|TestSNATFromOnePort|TestAConnectionThatLosesItsSecond|" +
			"TestHowLongAServer|TestATraceSays|TestAnUnallocatedAddressIsRefusedTo|TestTheFastPathTakesProtocolsWithoutPorts|TestOnceClusterIPsAreRouted|TestErrorsWithoutPorts|TestPacketsOfAPodsConnectionsInFormer|TestPortsBeyondTheRangeServeWhere|TestPacketsOfBackendsToPortsBeyond",
		why: "properties, stress, floods and shares: long", env: "NEARLB_FRAMES=few", worlds: 5, oldest: true},
	{pkg: "tests/hosts", only: "TestSCTP|TestEveryStepOfTheDemoComesOutAsItShould/line_by_line", quick: "TestSCTP/routed", oldest: true},
}

// of gives the suites that one of several kernels runs.
func (o options) of(kernel string) []suite {
	all := slices.Clone(o.suites)
	if !o.quick {
		for i := range all {
			all[i].worlds, all[i].env = 0, ""
		}
		return all
	}
	for i, s := range all {
		all[i].only = cmp.Or(s.quick, s.only)
		if s.loads != "" {
			all[i].without = strings.TrimPrefix(s.without+"|"+s.loads, "|") // an empty alternative is in every name
		}
	}
	if kernel == o.oldest() {
		return all
	}
	return slices.DeleteFunc(all, func(s suite) bool { return s.oldest })
}

func (o options) oldest() string { return slices.MinFunc(o.kernels, compareVersions) }

// skip is a test that a kernel cannot run.
type skip struct {
	kernel string // "": every one
	pkg    string
	test   string
	reason string
}

// skips is the whole list: any other skipped test is a failure, and so is one of these that is not skipped.
var skips = []skip{}
