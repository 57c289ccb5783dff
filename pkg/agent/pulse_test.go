// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	tables "github.com/nearlb/nearlb/pkg/maps"
)

// cluster of so many nodes, n0 and so on, each with an address.
func nodesOf(count int) (nodes map[string][]netip.Addr, names []string) {
	nodes = map[string][]netip.Addr{}
	for i := range count {
		name := fmt.Sprint("n", i)
		nodes[name] = []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
		names = append(names, name)
	}
	return nodes, names
}

// rhythm plays rounds; dead says who does not answer.
type rhythm struct {
	*pulse
	dead  func(name string) bool
	keeps func(name string) bool // no question leaves for it; nil: all do
	most  int                    // were asked in a round
}

// goes plays rounds to their ends, and gives what was told.
func (r *rhythm) goes(rounds int) (news []pulseNews) {
	for range rounds {
		asked := r.begin()
		r.most = max(r.most, len(asked))
		for part := range pulseParts {
			if part > 0 {
				asked = r.again()
			}
			for _, a := range asked {
				if r.keeps != nil && r.keeps(r.at[a]) {
					continue
				}
				r.left(a)
				if !r.dead(r.at[a]) {
					r.heard(a, r.mark(a))
				}
			}
			news = append(news, r.judge(part == pulseParts-1)...)
		}
	}
	return news
}

func newRhythm(count int) *rhythm {
	nodes, names := nodesOf(count)
	r := &rhythm{pulse: newPulse("n0"), dead: func(string) bool { return false }}
	r.follow(nodes, names)
	return r
}

// Three rounds without an answer make a node silent, and the first answer ends that in the same part of the round.
func TestANodeIsSilentAfterThreeRoundsAndHeardAtOnce(t *testing.T) {
	r := newRhythm(4)
	r.dead = func(name string) bool { return name == "n3" }
	if news := r.goes(10); news != nil {
		t.Errorf("who never answered is told of: %+v", news)
	}
	r.dead = func(string) bool { return false }
	if news := r.goes(3); news != nil {
		t.Errorf("told %+v", news)
	}
	r.dead = func(name string) bool { return name == "n2" }
	if news := r.goes(2); news != nil {
		t.Errorf("told of two rounds without an answer: %+v", news)
	}
	if news := r.goes(1); !slices.Equal(news, []pulseNews{{"n2", pulseSilent}}) {
		t.Errorf("told of three: %+v", news)
	}
	if news := r.goes(100); news != nil {
		t.Errorf("told again: %+v", news)
	}
	if answer, silent := r.count(); answer != 2 || !slices.Equal(silent, []string{"n2"}) {
		t.Errorf("%d answer, silent are %q", answer, silent)
	}
	r.begin()
	at := r.peers["n2"].addresses[0]
	r.heard(at, r.mark(at))
	if news := r.judge(false); !slices.Equal(news, []pulseNews{{"n2", pulseHeard}}) {
		t.Errorf("told of an answer: %+v", news)
	}
}

// Where nobody answers, this node is cut off: nobody is silent, not even after long. Those that are when it hears somebody again are told then.
func TestNobodyIsSilentToANodeThatHearsNobody(t *testing.T) {
	for count := 3; count < 100; count += 7 {
		r := newRhythm(count)
		r.goes(1)
		r.dead = func(string) bool { return true }
		if news := r.goes(30); news != nil {
			t.Errorf("%d nodes: told %+v", count, news)
		}
		first := r.order[0]
		r.dead = func(name string) bool { return name == first }
		news := r.goes(2)
		if !slices.Equal(news, []pulseNews{{first, pulseSilent}}) {
			t.Errorf("%d nodes, one of them dead: told %+v", count, news)
		}
	}
}

// Two nodes have no third one: each takes the other for silent, and hears it again by its first answer.
func TestOfTwoNodesOneIsSilentToTheOther(t *testing.T) {
	r := newRhythm(2)
	r.dead = func(string) bool { return true }
	if news := r.goes(10); news != nil {
		t.Errorf("who never answered is told of: %+v", news)
	}
	r.dead = func(string) bool { return false }
	r.goes(1)
	r.dead = func(string) bool { return true }
	if news := r.goes(2); news != nil {
		t.Errorf("told of two rounds without an answer: %+v", news)
	}
	if news := r.goes(30); !slices.Equal(news, []pulseNews{{"n1", pulseSilent}}) {
		t.Errorf("told of more: %+v", news)
	}
	r.dead = func(string) bool { return false }
	if news := r.goes(1); !slices.Equal(news, []pulseNews{{"n1", pulseHeard}}) {
		t.Errorf("told of an answer: %+v", news)
	}
}

// An answer counts if it has the mark of a question to that node, of this round or one of those that make it silent.
func TestWhatIsForgedOrReplayedIsNoAnswer(t *testing.T) {
	r := newRhythm(4)
	r.begin()
	at, other := r.peers["n1"].addresses[0], r.peers["n2"].addresses[0]
	first := r.mark(at)
	for what, heard := range map[string]bool{
		"a mark of nobody":                 r.heard(at, first+1),
		"the mark of a question to others": r.heard(at, r.mark(other)),
		"from another node":                r.heard(other, first),
		"from nobody that was asked":       r.heard(netip.MustParseAddr("10.9.9.9"), first),
		"another agent's":                  r.heard(at, newPulse("n0").mark(at)),
	} {
		if heard {
			t.Errorf("%s is an answer", what)
		}
	}
	for round := range pulseMissed + 1 {
		if !r.heard(at, first) {
			t.Errorf("after %d rounds it is none", round)
		}
		r.begin()
	}
	if r.heard(at, first) {
		t.Error("an old one counts")
	}
}

// 5,000 nodes: each asks 64 of those that it has backends on, and each is asked by about as many. More are asked while they do not answer.
func TestEachOfManyNodesAsksFewAndIsAskedByFew(t *testing.T) {
	const askers = 100
	nodes, names := nodesOf(5000)
	times := map[string]int{}
	for i := range askers {
		p := newPulse(names[i*50])
		p.follow(nodes, names)
		if n := len(p.begin()); n != pulsePeers+pulseFurther {
			t.Fatalf("%d are asked in a round", n)
		}
		for _, name := range p.order[:p.near] {
			times[name]++
		}
	}
	most := 0
	for _, n := range times {
		most = max(most, n)
	}
	if mean := askers * pulsePeers / 5000; len(times) < 3300 || most > 10*mean {
		t.Errorf("%d are asked, one by %d of %d", len(times), most, askers)
	}
	r := newRhythm(5000)
	for _, q := range r.peers {
		q.answered = true
	}
	r.dead = func(string) bool { return true }
	r.goes(40)
	if r.most != pulseMost {
		t.Errorf("%d are asked in a round when most are silent", r.most)
	}
}

// Who is far away on the ring is asked now and then, and in each round once it does not answer, or a backend there does not.
func TestAFarNodeIsFoundSilentByItsTurnOrByADoubt(t *testing.T) {
	const count = 600
	for _, doubted := range []bool{false, true} {
		r := newRhythm(count)
		turn := (count-1-pulsePeers)/pulseFurther + 1
		r.goes(turn)
		far := r.order[len(r.order)-1]
		r.dead = func(name string) bool { return name == far }
		rounds := turn + pulseMissed
		if doubted {
			r.doubt(far)
			rounds = pulseMissed
		}
		if news := r.goes(rounds); !slices.Equal(news, []pulseNews{{far, pulseSilent}}) {
			t.Errorf("doubted %v: told %+v after %d rounds", doubted, news, rounds)
		}
	}
}

// Two hours of 64 nodes where a twentieth of all packets is lost, each way.
func TestLostPacketsMakeNoNodeSilent(t *testing.T) {
	r := newRhythm(pulsePeers + 1)
	random := rand.New(rand.NewPCG(1, 2))
	lost := func() bool { return random.IntN(400) < 39 } // the question or its answer: 1 - 0.95 * 0.95
	for range 2 * 60 * 60 {
		asked := r.begin()
		for part := range pulseParts {
			if part > 0 {
				asked = r.again()
			}
			for _, a := range asked {
				r.left(a)
				if q := r.peers[r.at[a]]; !lost() { // without the time that marks take
					q.answered, q.heard, q.missed = true, r.round, 0
				}
			}
		}
		if news := r.judge(true); news != nil {
			t.Fatalf("round %d: told %+v", r.round, news)
		}
	}
}

// A silent node is asked where it was for as long as backends there take connections, whether it is listed or not: who is not heard is not back. It
// is told of when it is asked no more, and suspected again as soon as it is.
func TestASilentNodeThatIsNotListedIsAskedUntilItIsHeard(t *testing.T) {
	r := newRhythm(10)
	nodes, names := nodesOf(10)
	r.goes(1)
	r.dead = func(name string) bool { return name == "n1" || name == "n2" }
	r.goes(pulseMissed)
	for _, gone := range []string{"n1", "n2", "n3"} {
		delete(nodes, gone)
	}
	if news := r.follow(nodes, names); news != nil || r.peers["n1"] == nil || r.peers["n2"] == nil || r.peers["n3"] != nil {
		t.Errorf("told %+v; asked are %q", news, r.order)
	}
	r.dead = func(name string) bool { return name == "n1" }
	if news := r.goes(pulseMissed); !slices.Equal(news, []pulseNews{{"n2", pulseHeard}}) {
		t.Errorf("told %+v of who answers again", news)
	}
	if news := r.follow(nodes, []string{"n0", "n2", "n4", "gone"}); !slices.Equal(news, []pulseNews{{"n1", pulseUnused}}) {
		t.Errorf("told %+v of a node without backends", news)
	}
	if len(r.order) != pulseLeast || r.order[0] != "n4" || slices.Contains(r.order, "n0") {
		t.Errorf("asked are %q", r.order)
	}
	nodes, names = nodesOf(10)
	r.follow(nodes, names)
	if news := r.goes(pulseMissed); !slices.Equal(news, []pulseNews{{"n1", pulseSilent}}) {
		t.Errorf("told %+v of a node with backends again", news)
	}
}

// Another node may have the address of one that is gone: what comes from there is its own.
func TestTheAddressOfASilentNodeMayBecomeAnothers(t *testing.T) {
	r := newRhythm(10)
	nodes, names := nodesOf(10)
	r.goes(1)
	r.dead = func(name string) bool { return name == "n1" }
	r.goes(pulseMissed)
	nodes["n10"] = nodes["n1"]
	delete(nodes, "n1")
	if news := r.follow(nodes, append(names, "n10")); !slices.Equal(news, []pulseNews{{"n1", pulseUnused}}) {
		t.Errorf("told %+v", news)
	}
	if news := r.goes(1); news != nil || !r.peers["n10"].answered {
		t.Errorf("told %+v of another node at its address", news)
	}
}

// An object that a machine with another name left behind has no backends: the answers of its address are those of the node that has some.
func TestANodeWhoseAddressAnotherObjectHasIsFoundSilent(t *testing.T) {
	nodes, _ := nodesOf(3)
	nodes["left"] = nodes["n1"]
	silent := false
	r := &rhythm{pulse: newPulse("n0"), dead: func(name string) bool { return silent && name != "n2" }}
	r.follow(nodes, []string{"n1", "n2"})
	news := r.goes(3)
	silent = true
	if news = append(news, r.goes(3)...); !slices.Equal(news, []pulseNews{{"n1", pulseSilent}}) {
		t.Errorf("told %+v", news)
	}
}

// What this node could not ask says nothing of who was to be asked.
func TestARoundWhoseQuestionDidNotLeaveIsNotMissed(t *testing.T) {
	r := newRhythm(4)
	r.goes(1)
	r.keeps = func(name string) bool { return name == "n2" }
	if news := r.goes(10); news != nil {
		t.Errorf("told %+v", news)
	}
	r.keeps, r.dead = nil, func(name string) bool { return name == "n2" }
	if news := r.goes(pulseMissed - 1); news != nil {
		t.Errorf("told %+v before three questions", news)
	}
	if news := r.goes(1); !slices.Equal(news, []pulseNews{{"n2", pulseSilent}}) {
		t.Errorf("told %+v", news)
	}
}

// An agent that starts, or one with other tables, tells again of nodes that are silent to it, or were to the one before.
func TestNodesThatWereSilentToAnEarlierAgentAreToldAgain(t *testing.T) {
	r := newRhythm(4)
	r.dead = func(name string) bool { return name == "n1" || name == "n2" }
	if news := r.remember([]string{"n1"}); !slices.Equal(news, []pulseNews{{"n1", pulseStill}}) {
		t.Errorf("told %+v", news)
	}
	if news := r.goes(pulseMissed); news != nil {
		t.Errorf("told %+v again", news)
	}
	r.remember(nil)
	if news := r.goes(1); !slices.Equal(news, []pulseNews{{"n1", pulseSilent}}) {
		t.Errorf("told %+v of other tables", news)
	}
}

// The nodes may be listed after the tables were read: an agent starts beside an API server that is away.
func TestNodesThatWereSilentToAnEarlierAgentMayBeListedLater(t *testing.T) {
	r := newRhythm(1)
	r.dead = func(name string) bool { return name == "n1" || name == "n2" }
	if news := r.remember([]string{"n1"}); news != nil {
		t.Errorf("told %+v of nodes that are not known", news)
	}
	if news := r.follow(nodesOf(4)); !slices.Equal(news, []pulseNews{{"n1", pulseStill}}) {
		t.Errorf("told %+v", news)
	}
	if news := r.goes(pulseMissed); news != nil {
		t.Errorf("told %+v again", news)
	}
}

// Who was left out by an earlier agent and is back answers the first question, and is told of.
func TestANodeThatWasSilentToAnEarlierAgentAndIsBackIsHeard(t *testing.T) {
	r := newRhythm(4)
	r.remember([]string{"n1"})
	if news := r.goes(1); !slices.Equal(news, []pulseNews{{"n1", pulseHeard}}) {
		t.Errorf("told %+v", news)
	}
}

// A node of which a backend answered has to answer itself before it is suspected, also where it is not asked for a while.
func TestWhatIsKnownOfANodeThatIsNotAskedIsForgottenOnceItIs(t *testing.T) {
	r := newRhythm(10)
	nodes, names := nodesOf(10)
	r.goes(1)
	r.dead = func(name string) bool { return name == "n1" }
	r.goes(pulseMissed)
	for _, listed := range []bool{false, true} {
		if delete(nodes, "n1"); listed {
			nodes, names = nodesOf(10)
		}
		if r.follow(nodes, slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !listed && name == "n1" })); listed {
			r.alive("n1")
		}
	}
	delete(nodes, "n1")
	r.follow(nodes, slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "n1" }))
	r.follow(nodesOf(10))
	if news := r.goes(2 * pulseMissed); news != nil {
		t.Errorf("told %+v of a node that has not answered since", news)
	}
}

// Nodes of a cluster that grows and shrinks die silent for years: so many are known, and no more.
func TestNodesThatDiedSilentAreNotKnownForEver(t *testing.T) {
	r := newRhythm(2)
	for i := range 2 * pulseKnown {
		r.peers[fmt.Sprint("gone", i)] = &peer{silent: true}
		r.follow(nil, nil)
	}
	if len(r.known) != pulseKnown {
		t.Errorf("%d nodes are known, want %d", len(r.known), pulseKnown)
	}
}

// Whatever arrives is taken for an answer only if it is one byte for byte, but for what nodes that come later may say.
func FuzzHelloAnswer(f *testing.F) {
	keyed := tables.Cookies{Asked: true, Sent: 5, Accepted: [2]uint64{5, 7}}
	for _, c := range []tables.Cookies{{}, keyed} {
		answer := helloOf(c, 9)
		f.Add(slices.Clone(answer))
		answer[6], answer[7] = helloAnswer, helloDirect
		f.Add(answer)
		f.Add(answer[:len(answer)-1])
		f.Add(append(slices.Clone(answer), 0))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, c := range []tables.Cookies{{}, keyed} {
			mark, is := answerOf(in, c)
			if !is {
				continue
			}
			likes := 0
			for _, sent := range c.Accepted {
				c.Sent = sent
				like := helloOf(c, mark)
				like[6], like[7] = helloAnswer, in[7]
				if slices.Equal(in, like) {
					likes++
				}
			}
			if likes == 0 {
				t.Errorf("%x is taken for an answer", in)
			}
		}
	})
}

// What a second of heartbeats takes in an agent, but for its tables and sockets.
func BenchmarkASecondAmongFiveThousandNodes(b *testing.B) {
	nodes, names := nodesOf(5000)
	p := newPulse(names[0])
	for i := range b.N {
		if i%heartbeatFollow == 0 {
			p.follow(nodes, names)
		}
		asked := p.begin()
		for _, to := range asked {
			p.heard(to, p.mark(to))
			p.left(to)
		}
		for part := range pulseParts {
			p.judge(part == pulseParts-1)
		}
		if len(asked) == 0 {
			b.Fatal("nobody is asked")
		}
	}
}
