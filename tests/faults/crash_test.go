// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lab"
	tables "github.com/nearlb/nearlb/pkg/maps"
)

const (
	reloadEvery  = 25                     // kills: so often the agent loads its programs anew
	mostWrites   = 90                     // until an agent's end: about those of two states' publication
	reclaimEvery = 250 * time.Millisecond // often, so that ids are used again
)

// kills is how often the agent is killed.
var kills = flag.Int("kills", 50, "`times` that an agent is killed at some write")

// Promises 1 and 2. An agent is killed between any two writes to the tables, again and again, in the middle of publishing or of
// mending what the last one left, while pods, the node and a host outside ask. The next one ends where a cold start ends, and
// every answer came from who was right before the change or after it.
func TestAnAgentKilledAtAnyWriteLeavesNothingHalfDone(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("NEARLB_TEST_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("NEARLB_TEST_SEED=%d", seed)
	k := newKilling(t, rand.New(rand.NewPCG(seed, 1)))
	k.learn()
	k.enter(0)
	last := k.mortal(k.n1, k.doom, true)
	last.serving()
	k.open()
	k.settled(last)
	load := k.load()
	load.more(500)
	for n := range *kills {
		last = k.kill(last, (n+1)%reloadEvery == 0)
		if load.failed() {
			break
		}
	}
	last = k.spare(last)
	s := last.serving()
	if s.Drift != 0 {
		t.Errorf("the last audit found %d differences", s.Drift)
	}
	load.more(500)
	load.end(t)
	t.Logf("%d states published, %d kills in a recovery", len(k.entered), k.inRecovery)
	warm := k.now()
	k.cold(last)
	last = k.mortal(k.n1, k.doom, true)
	last.serving()
	if got := k.dump(k.n1); got != warm {
		t.Errorf("a cold start at the end does not end so (-cold +before):\n%s", cmp.Diff(got, warm))
	}
}

// killing is a cluster whose objects are now in one state, now in another.
type killing struct {
	*cluster
	random     *rand.Rand
	n1         *lab.Node
	pod        *lab.Pod
	outside    *lab.Outside
	doom       string
	doomed     bool // the agent that runs knows when it dies
	states     [][]service
	dumps      []string // of a cold start in each state
	reader     *tables.Reader
	inRecovery int

	mu      sync.Mutex
	entered []int // the states, one after the other
	settle  int   // how many of them came before the one that is in force for sure
}

func newKilling(t *testing.T, random *rand.Rand) *killing {
	c := newCluster(t)
	k := &killing{cluster: c, random: random, n1: c.node(), doom: filepath.Join(c.Dir, "doom")}
	k.pod = c.pod(k.n1, "client")
	var err error
	k.outside, err = c.AddOutside(lab.OutsideOptions{Name: "outside"})
	c.must(err)
	here, there := c.servers(k.n1, "a", "b", "c"), c.servers(c.node(), "d", "e", "f")
	k.states = statesOf(append(here, there...))
	return k
}

// statesOf are sets of Services to go between. Every table has entries that come and go; web-1 and web-2 are asked.
func statesOf(p []*lab.Pod) [][]service {
	one := func(pods ...*lab.Pod) service { return web(1, pods...) }
	two := func(pods ...*lab.Pod) service {
		s := web(2, pods...)
		for i := range s.Ports {
			s.Ports[i].NodePort = nodePort
		}
		return s
	}
	ranges := func(number int, sources ...string) service {
		s := web(number, p[0], p[3])
		s.LoadBalancers = []lab.LoadBalancer{{IP: netip.MustParseAddr("203.0.113.1")}, {IP: netip.MustParseAddr("2001:db8:2::1")}}
		for _, r := range sources {
			s.SourceRanges = append(s.SourceRanges, netip.MustParsePrefix(r))
		}
		return s
	}
	sticky := web(4, p[1])
	sticky.Affinity = 600
	return [][]service{
		{one(p[0], p[1]), two(p[0], p[3])},
		{one(p[1], p[2], p[3]), two(), ranges(3, "192.0.2.0/24", "2001:db8:99::/48"), sticky},
		{one(p[0], p[2], p[3], p[4], p[5]), two(p[1], p[2], p[4], p[5]), ranges(3, "10.0.0.0/8"), ranges(5)},
		{one(p[5]), two(p[3]), sticky, ranges(5, "10.0.0.0/8", "fd00::/8")},
	}
}

const nodePort = 30002

// learn finds out what a cold start makes of each state.
func (k *killing) learn() {
	k.t.Helper()
	for i := range k.states {
		k.enter(i)
		first := k.mortal(k.n1, k.doom, true)
		first.serving()
		k.dumps = append(k.dumps, k.dump(k.n1))
		k.cold(first)
	}
}

// cold ends an agent and takes all that it made out of the kernel.
func (k *killing) cold(a *running) {
	k.t.Helper()
	k.must(a.Kill())
	k.must(k.Mounted(func() error { _, err := bpf.Cleanup(k.n1.PinPath()); return err }))
}

// open opens the tables, which stay the same from now on: they are looked at often.
func (k *killing) open() {
	k.t.Helper()
	k.must(k.Mounted(func() error {
		pinned, err := bpf.OpenMaps(k.n1.PinPath(), true)
		if err == nil {
			k.t.Cleanup(func() { _ = pinned.Close() })
			k.reader, err = tables.NewReader(pinned)
		}
		return err
	}))
	k.t.Cleanup(func() { k.must(k.reader.Close()) })
}

// now is the canonical text of the tables.
func (k *killing) now() string {
	k.t.Helper()
	var text strings.Builder
	k.must(k.reader.Dump(&text))
	return text.String()
}

// enter writes the objects of a state.
func (k *killing) enter(state int) {
	k.t.Helper()
	k.mu.Lock()
	k.entered = append(k.entered, state)
	k.mu.Unlock()
	k.publish("services.yaml", k.states[state]...)
}

// settled waits until the tables are those of a cold start in the last state.
func (k *killing) settled(a *running) {
	k.t.Helper()
	k.awaitDump(fmt.Sprintf("agent %d", a.PID()), k.dumps[k.entered[len(k.entered)-1]])
	k.noteSettled()
}

func (k *killing) noteSettled() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.settle = len(k.entered) - 1
}

func (k *killing) awaitDump(who, want string) {
	k.t.Helper()
	got := ""
	if lab.Await(patience, func() bool { got = k.now(); return got == want }) != nil {
		k.t.Fatalf("%s does not end as a cold start (-cold +this):\n%s", who, cmp.Diff(want, got))
	}
}

// kill has the agent die in one of its next writes, by changing the state until it does, and starts another. Now and then
// that one is to die while it mends what this one left.
func (k *killing) kill(a *running, reload bool) *running {
	k.t.Helper()
	done := k.doom + ".done"
	if !k.doomed {
		k.condemn(mostWrites)
	}
	k.doomed = false
	for k.alive(a) {
		state := (k.entered[len(k.entered)-1] + 1 + k.random.IntN(len(k.states)-1)) % len(k.states)
		k.enter(state)
		k.await(fmt.Sprintf("agent %d dies or ends as a cold start", a.PID()), func() bool {
			return !k.alive(a) || k.now() == k.dumps[state]
		})
		if k.alive(a) {
			k.noteSettled()
		}
	}
	if os.Remove(done) != nil {
		k.t.Fatalf("agent %d ended by itself", a.PID())
	}
	if k.random.IntN(3) == 0 {
		return k.startDoomed(reload)
	}
	next := k.mortal(k.n1, k.doom, reload)
	k.settled(next)
	return next
}

// condemn says when the agent dies.
func (k *killing) condemn(most int) {
	k.t.Helper()
	k.must(os.WriteFile(k.doom+".new", []byte(strconv.Itoa(1+k.random.IntN(most))), 0o600))
	k.must(os.Rename(k.doom+".new", k.doom))
}

// spare ends an agent at no certain place and starts one that lives.
func (k *killing) spare(a *running) *running {
	k.t.Helper()
	k.must(a.Kill())
	_ = os.Remove(k.doom)
	next := k.mortal(k.n1, k.doom, false)
	k.settled(next)
	return next
}

// startDoomed starts an agent that counts from its first write.
func (k *killing) startDoomed(reload bool) *running {
	k.t.Helper()
	k.condemn(mostWrites / 3)
	k.doomed = true
	next := k.mortal(k.n1, k.doom, reload)
	want := k.dumps[k.entered[len(k.entered)-1]]
	k.await(fmt.Sprintf("agent %d dies or ends as a cold start", next.PID()), func() bool {
		return !k.alive(next) || k.now() == want
	})
	if !k.alive(next) {
		k.inRecovery++
	}
	return next
}

func (k *killing) alive(a *running) bool {
	select {
	case <-a.Ended():
		return false
	default:
		return true
	}
}

// load asks web-1 from the pod and the node, and web-2's node port from outside, and holds connections to both.
func (k *killing) load() *traffic {
	k.t.Helper()
	l := k.traffic()
	for number, of := range []struct {
		client client
		to     func(six bool) netip.AddrPort
		index  int
	}{
		{k.pod, k.states[0][0].address, 0},
		{k.n1, k.states[0][0].address, 0},
		{k.outside, func(six bool) netip.AddrPort { return netip.AddrPortFrom(k.n1.Address(six), nodePort) }, 1},
	} {
		for _, w := range ways() {
			l.repeat(fmt.Sprintf("%s asks %s %s", of.client, w, of.to(w.six)), func() error {
				return k.right(of.index, func() (string, error) { return answer(of.client, w, of.to(w.six)) })
			})
		}
		if number != 1 { // the node's UDP sockets are ended as their backend goes
			k.holdTCP(l, of.client, of.to)
		}
	}
	return l
}

// holdTCP keeps a connection of each family, whose server never changes.
func (k *killing) holdTCP(l *traffic, from client, to func(six bool) netip.AddrPort) {
	k.t.Helper()
	for _, six := range []bool{false, true} {
		l.holdOne(from, way{"tcp", six}, to(six))
	}
}

// right says whether an answer is one of a state that was in force between the question and the answer.
func (k *killing) right(index int, ask func() (string, error)) error {
	from := k.position(func() int { return k.settle })
	got, err := ask()
	if err != nil {
		return err
	}
	to := k.position(func() int { return len(k.entered) - 1 })
	allowed := map[string]bool{}
	for i := from; i <= to; i++ {
		state := k.position(func() int { return k.entered[i] })
		for _, p := range k.states[state][index].pods {
			allowed[p.Name] = true
		}
		if len(k.states[state][index].pods) == 0 {
			allowed[refused] = true
		}
	}
	if !allowed[got] {
		return fmt.Errorf("answer %q, want one of %v", got, slices.Sorted(maps.Keys(allowed)))
	}
	return nil
}

func (k *killing) position(f func() int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return f()
}
