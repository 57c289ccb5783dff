// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
)

// suite is a package whose tests run in the guests.
type suite struct {
	pkg     string
	only    string // tests to run; "": all
	without string // tests left out, of those
	why     string // they are left out
	quick   string // tests to run with -quick; "": all of them
	env     string // with -quick
	worlds  int    // of each property, with -quick; 0: as many as elsewhere
	oldest  bool   // -quick runs it on the oldest kernel alone: it takes long, and newer ones differ less from this machine's
	held    string // tests left out with -quick on the oldest kernel, where another suite's hold as much
}

// suites are what `make test-kernels` runs. What a kernel may do otherwise than another is the verifier, helpers, hooks and
// devices; the tests left out are those that are long, and about nothing of that. Emulation is ten to twenty times slower than
// this machine.
var suites = []suite{
	{pkg: "pkg/bpf", only: "Verifier|Probe|Kernel|Stack", held: "TestVerifierWalksThroughTheTunnel", why: "tests/packet loads these programs, and counts"},
	{pkg: "pkg/attach", oldest: true}, // newer ones have TCX, as this machine has
	{pkg: "pkg/bypass", only: "OfTheKernel"},
	{pkg: "pkg/maps", only: "Kernel", worlds: 5, oldest: true},
	{pkg: "tests/sockets", without: "TestSocketsOfOtherNamespacesAreServedOnlyWhenAllAre/all", why: "the same programs by a flag: the default is run",
		oldest: true},
	{pkg: "tests/packet", without: "TestRandomHistories|TestConnectionsThroughSNATAreNeverTakenForOneAnother|TestPacketsCutAtEveryByte|TestProcessors|" +
		"TestSharesAreWithinOnePercentOfEqual|TestRepliesGiveBackExactly|TestTheFlowTable|FullBlock|ItsPortsBlocks|FillsTheTable|FillTheTable|TestPacketsWithChangedBytes|TestAFlood|" +
		"TestOnePortServesConnections|TestICMPErrorsAreLimited|TestWhatICMPsLimit|TestAClashingConnectionLasts|TestFramesShorterThan",
		quick: paths, why: "properties, stress, floods and shares: long", env: "NEARLB_FRAMES=few", oldest: true},
	{pkg: "tests/hosts", only: "TestSCTP|TestEveryStepOfTheDemoComesOutAsItShould/line_by_line", quick: "TestSCTP/routed", oldest: true},
}

// paths are the tests of tests/packet that the gate runs on an emulated kernel: some for each way that a packet takes through the programs,
// for each helper and kernel function that these call, and for each knob that has them verified otherwise. With those of tests/sockets they
// run every program of the object and make every kind of call to the kernel that it contains: a counter put before each call instruction
// showed that on the day the list was made, and that all other tests of the package add none. What these hold is what the same programs
// decide, which they do alike on this machine's kernel; `make test-kernels` plays all of them on each.
const paths = "TestOtherProtocolsToAServiceAddress|TestFragmentsOfAnEchoRequest|TestAffinityKeepsAClient|TestDatagramsThatNobodyAnswersGoTo|" +
	"TestOneClientPortTowardsTwoFrontends|TestAChosenSourcePort|TestConnectionsAndBytesAreCounted|TestDropsAndRejectsAreSampled|TestATracedPacket|" +
	"TestAnswersOfServersLeave|TestQuestionsForNames|TestTheProgramAnswersNames|TestADrainingNode|TestAConnectionIsTranslatedBothWays|TestTiersAreTried|" +
	"TestAnExpiredFlow|TestTheLifeOfATCPFlow|TestANodesAddressThatServices|TestLaterFragmentsFollow|TestAPodReachesItself|TestIPv4OptionsStay|" +
	"TestIPv6ExtensionHeaders|TestUDPWithoutChecksum|TestAUDPChecksumOfZero|TestFramesThatAreNotPlainIP|TestSCTPIsTranslated|TestEthernetPaddingStays|" +
	"TestTheAgentIsToldOfABackendThatDoesNotAnswer/two_connections|TestErrorsAboutForwarded|TestErrorsAboutReplies|" +
	"TestTheLessLoadedOfTwoBackends/.*/as_many_to_each|TestAConnectionWhoseBackendIsGoneAndSilent|TestADisabledDatapath|" +
	"TestEveryKindOfFrontend|TestANodePortMayBeAnyPort|TestTheFastPathTakesWhatItShould|TestAServiceWithoutEndpoints|TestSourceRangesAreKept|" +
	"TestAnEchoRequestToAService|TestARefusalBecomesTheSYN|TestARefusalThroughSNAT|TestAResponderThatIsSilent|TestASYNThatNobodyAnswersGoesToAnotherBackend|" +
	"TestAConnectionThatWasRefused|TestASYNThroughSNATThatNobody|TestATranslatedPacketGoesTo|TestAFlowThatIsMadeAgainKeeps|TestWhatEndsHere|" +
	"TestSNATNeeds|TestAPortThatTheHostListensAt|TestAClientOffTheNodeReaches|TestUnusualHeadersPass|TestErrorsPass|TestWhatDoesNot|" +
	"TestTheRoutingTable|TestPartialChecksums|TestReceiversWithoutOffloads|TestCallsOf|TestConnectionsOfKubeProxy|TestSNATKeepsApart|" +
	"TestTheBackendsNodeAnswers|TestErrorsFindBothEnds|TestFragmentsOfADirectAnswer|TestAHelloIsAnswered|TestABackendThatItsNodeDoesNotKnow|" +
	"TestAClientOffTheNodeKeepsItsAddress|TestATTLThatEnds|TestCongestionInTheTunnel|TestNewConnectionsTakeTurns|TestHeadersOutsideTheLinearPart|" +
	"TestAnswersToPacketsWithPartialChecksums|TestAConnectionThroughSNATGoesOnAtXDP|TestAFlowLivesOnPacketsAtXDP|TestWhatLeavesAsItCameAtXDP|TestXDPSendsThroughTheTunnel|TestPacketsTakenOut|" +
	"TestNobodyIsANodeWithoutTheCookie|TestTheKeyChangesWithoutALoss|TestBytesOfFlowsAreCounted|TestProgramsEndTheCount|" +
	"TestAClientOnTheNodeThatIsItsBackend|TestAnswersToASocketOfTheHost|TestKnownConnections"

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
	}
	if kernel == o.oldest() {
		for i, s := range all {
			all[i].without = cmp.Or(s.without, s.held)
		}
		return all
	}
	return slices.DeleteFunc(all, func(s suite) bool { return s.oldest })
}

// processors are each machine's. Two under emulation wait for one another, each time that memory is given back or code is written, and so
// take a fifth more of this machine's time for the same. One is enough for what -quick asks: does the kernel take the programs, and do they do
// there what they do here.
func (o options) processors() int {
	if o.quick {
		return 1
	}
	return 2
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
var skips = []skip{
	{"6.1", "pkg/attach", "TestALinkIsPinnedBeforeItsProgramSeesAPacket", "Linux 6.6 was the first with TCX"},
	{"6.1", "pkg/attach", "TestALinkThatSomebodyDetachesOrGivesAnotherProgramComesBack", "the same"},
	{"6.1", "pkg/attach", "TestWhatADeviceSendsIsAskedOnceProgramsAreAttached", "Linux 6.3 was the first to say what drivers can do"},
}
