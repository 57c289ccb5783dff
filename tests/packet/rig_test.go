// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

// Names of hooks as rows give them.
const (
	fromPod = "from_pod"
	toPod   = "to_pod"
	fromNet = "from_net"
	toNet   = "to_net"
	sock    = "sock"
)

// rig is the programs with tables of their own.
type rig struct {
	testing.TB
	objects  *bpf.Objects
	tables   *maps.Tables
	counted  map[counter]bpf.NearlbVerdictCounter
	served   map[lb.ServiceName]bool
	door     door
	began    uint32       // in jiffies: before its first packet
	noXDP    bool         // frames are not run through the program at XDP as well
	xdpOpens bool         // it takes packets out of the tunnel
	resumed  *int         // not nil: from_net goes on with those, which are counted; nil: it takes them out itself, and both are compared
	ran      int          // packets whose counters were looked at
	made     *int         // flows that the program at XDP made
	sends    bool         // it may send by devices: it makes flows
	by       netlink.Link // nil: the device that frames of from_net come by is the loopback one
}

// counter names one verdict counter.
type counter struct{ hook, verdict string }

// small are sizes that are quick to make and to clear. A table of the LRU kind has room for what every processor lays by for itself, up to
// 128 entries: where one finds none left, the kernel gives up entries of others before their time.
func small() bpf.Sizes {
	return bpf.Sizes{
		Frontends: 256, Records: 1024, Slots: 65536, Backends: 512, FlowSets: 256, Affinity: 4096, Fragments: 4096,
		SourceRanges: 64, Services: 256, Names: 256,
	}
}

// withSets asks for a small flow table.
func withSets(n uint32) bpf.Options {
	sizes := small()
	sizes.FlowSets = n
	return bpf.Options{Sizes: sizes}
}

// unhurried is withSets where a datagram's connection counts as active for half a minute after it, instead of a few seconds: a
// machine that has other things to do has time to go on with it.
func unhurried(n uint32) bpf.Options {
	o := withSets(n)
	o.Knobs = map[string]any{"udp_active_seconds": uint32(30)}
	return o
}

// few: only tests about XDP run frames through the program there as well, and each world is at one door. Under emulation each frame
// counts.
var few = os.Getenv("NEARLB_FRAMES") == "few"

// features are the knobs of what packets meet where tables ask for it as well, and not before.
var features = map[string]any{"dns_there": uint8(1), "responder_silence": silence, "shortcut_there": uint8(1), "tunnel_there": uint8(1)}

// shares says whether a rig is loaded with all features under emulation, as it asks for nothing else: these rigs share their loads. Tests of
// pkg/bpf have the programs without any of them verified there, too.
func shares(o bpf.Options) bool {
	for knob := range o.Knobs {
		if features[knob] == nil {
			return false
		}
	}
	return few && !o.Trace && !o.XDPOpens && len(o.Without) == 0
}

// only has an emulated kernel verify these programs alone: for a test that cannot share a load and runs no others.
func only(o bpf.Options, programs ...string) bpf.Options {
	all := reflect.TypeFor[bpf.NearlbPrograms]()
	for i := range all.NumField() {
		if name := all.Field(i).Tag.Get("ebpf"); few && !slices.Contains(programs, name) {
			o.Without = append(o.Without, name)
		}
	}
	return o
}

// walkedMost is what the verifier may walk of any program with these features, half of the limit of a million: pkg/bpf holds others to it.
const walkedMost = 500_000

func walkedLittle(t testing.TB, objects *bpf.Objects) {
	t.Helper()
	for name, program := range objects.NearlbPrograms.ByName() {
		info, err := program.Info()
		check(t, err)
		if n, ok := info.VerifiedInstructions(); !ok || n > walkedMost {
			t.Errorf("program %s: the verifier walks %d instructions (known: %t), more than %d", name, n, ok, walkedMost)
		}
	}
}

// withoutUse are the programs that nothing leads to with these knobs, as for agents: each takes the verifier's time.
func withoutUse(o bpf.Options) (programs []string) {
	for _, of := range []struct {
		knob     string
		programs []string
	}{
		{"shortcut_there", []string{bpf.NearlbProgShortcut}},
		{"dns_there", []string{bpf.NearlbProgFromPodDns}},
		{"tunnel_there", []string{bpf.NearlbProgTunnelOut, bpf.NearlbProgTunnelIn, bpf.NearlbProgTunnelForward, bpf.NearlbProgTunnelBack, bpf.NearlbProgTunnelIcmp, bpf.NearlbProgXdpTunnelOut, bpf.NearlbProgXdpTunnelIn}},
	} {
		if o.Knobs[of.knob] == nil {
			programs = append(programs, of.programs...)
		}
	}
	if !o.XDPOpens {
		programs = append(programs, bpf.NearlbProgFromNetFast, bpf.NearlbProgTunnelOpened)
	}
	return programs
}

// ofSockets are verified the same with any knob: rigs that share a load have them.
var ofSockets = []string{bpf.NearlbProgSockConnect4, bpf.NearlbProgSockConnect6, bpf.NearlbProgSockSendmsg4, bpf.NearlbProgSockSendmsg6}

func newRig(t testing.TB, o bpf.Options) *rig {
	t.Helper()
	privileged.Require(t)
	if o.Sizes == (bpf.Sizes{}) {
		o.Sizes = small()
	}
	atXDP := !few || o.XDPOpens || strings.Contains(t.Name(), "XDP")
	o.XDP, o.XDPWays = atXDP, 4096 // a test has few flows, and looks at all ways
	switch {
	case shares(o):
		o.XDP, o.Knobs = true, features
	case few:
		o.Without = append(o.Without, ofSockets...)
	}
	o.Without = append(o.Without, withoutUse(o)...)
	objects := loaded(t, unhastily(o))
	r := &rig{TB: t, objects: objects, tables: newTables(t, objects), served: map[lb.ServiceName]bool{}, began: bpf.Jiffies(), noXDP: !atXDP, xdpOpens: o.XDPOpens, made: new(int)}
	r.serveXDP()
	r.counted = r.counters()
	return r
}

// in is the same rig reporting to a subtest, with nothing published, remembered or counted.
func (r *rig) in(t testing.TB) *rig {
	t.Helper()
	sub := r.over(t)
	for name := range r.served {
		sub.remove(name)
	}
	sub.forget()
	sub.tables.Reclaim(time.Now().Add(time.Hour)) // nobody names what was removed
	return sub
}

// over is the same rig, as it is, reporting to a subtest.
func (r *rig) over(t testing.TB) *rig {
	sub := *r
	sub.TB, sub.ran = t, 0
	sub.counted = sub.counters()
	return &sub
}

// outcome is what a program did with one frame.
type outcome struct {
	verdict string
	action  action
	frame   []byte
	opened  *bpf.NearlbTunnelPacket // what the program at XDP says of a packet that it took out of the tunnel; nil: it did not
}

// action is what the program told the kernel.
type action int32

// The actions: pass on to whoever is next, drop, or the device that bpf_redirect named.
const (
	actUnspec   action = -1
	actOK       action = 0
	actShot     action = 2
	actRedirect action = 7
)

// errRefused says that the kernel does not run programs over such a frame: shorter than its IP header, or longer than a page.
var errRefused = errors.New("run program: the kernel refuses the frame")

// execute runs one program over one frame and looks at no counter.
func (r *rig) execute(hook string, frame []byte) (action, []byte, error) {
	r.Helper()
	code, out, err := r.pass(hook, ebpf.RunOptions{Data: frame})
	if err != nil {
		return 0, nil, errors.Join(errRefused, err)
	}
	return code, out, nil
}

// run runs one program over one frame: exactly one counter must have grown, by one packet. E7: the program at XDP gets a frame of a network device
// first, and what it decides and writes is compared with what TC does.
func (r *rig) run(hook string, frame []byte) (outcome, error) {
	r.Helper()
	before, opened := r.firstAtXDP(hook, frame)
	code, out, err := r.afterXDP(before, hook, frame)
	if err != nil {
		return outcome{}, err
	}
	o := outcome{action: code, frame: out}
	now := r.countersAfter(r.hook(hook))
	for c, value := range now {
		before := r.counted[c]
		if value == before {
			continue
		}
		if o.verdict != "" || value.Packets != before.Packets+1 || c.hook != r.hook(hook) {
			r.Errorf("%s: counter %s/%s grew by %d beside verdict %q; each packet counts once, at its hook", hook, c.hook, c.verdict, value.Packets-before.Packets, o.verdict)
		}
		if grown := value.Bytes - before.Bytes; grown != uint64(r.length(frame)) {
			r.Errorf("%s: counter %s grew by %d bytes for a frame of %d", hook, c.verdict, grown, r.length(frame))
		}
		o.verdict = c.verdict
	}
	if o.verdict == "" {
		r.Errorf("%s: no verdict counted", hook)
	}
	r.counted = now
	before.compare(r, frame, o)
	r.compareMade(opened, frame)
	return o, nil
}

// total is the sum of all verdict counters.
func (r *rig) total() uint64 {
	var n uint64
	for _, c := range r.counters() {
		n += c.Packets
	}
	return n
}

// forget empties what the datapath remembers: flows, affinity, fragments. As after eviction or a restart.
func (r *rig) forget() {
	r.Helper()
	r.evict()
	clearHash[bpf.NearlbAffinityKey](r, r.objects.Affinity)
	clearHash[bpf.NearlbFragmentKey](r, r.objects.Fragments)
	r.edit(func(s *bpf.NearlbSettings) { s.Routed = 0 })
}

// evict empties the flow table alone.
func (r *rig) evict() {
	r.Helper()
	check(r, r.objects.ForgetFlows())
	r.forgetWays()
}

func clearHash[K any](r *rig, table *ebpf.Map) {
	r.Helper()
	var keys []K
	var key, value = new(K), []byte(nil)
	for entries := table.Iterate(); entries.Next(key, &value); {
		keys = append(keys, *key)
	}
	for _, k := range keys {
		if err := table.Delete(&k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			r.Fatalf("clear table %s: %v", table, err)
		}
	}
}

// editFlows hands every live flow to edit and writes it back.
func (r *rig) editFlows(edit func(*bpf.NearlbFlow)) {
	r.Helper()
	r.editEntries(edit, bpf.NearlbFlowPhaseFLOW_LIVE)
}

// editEntries does the same with entries in one of the phases. The table is read as memory: a call for each set would be most of what
// some tests take.
func (r *rig) editEntries(edit func(*bpf.NearlbFlow), phases ...bpf.NearlbFlowPhase) {
	r.Helper()
	for i, set := range contents[bpf.NearlbFlowSet](r, r.objects.Flows) {
		before := set
		for w := range set.Ways {
			if slices.Contains(phases, phaseOf(set.Ways[w])) {
				edit(&set.Ways[w])
			}
		}
		if set == before {
			continue
		}
		if err := r.objects.Flows.Put(uint32(i), &set); err != nil {
			r.Fatalf("write table flows: %v", err)
		}
		r.untag(uint32(i), set)
	}
}

// contents is a copy of a table that is mapped into memory, whose elements leave no gaps.
func contents[V any](r *rig, table *ebpf.Map) []V {
	r.Helper()
	memory, err := table.Memory()
	check(r, err)
	all := make([]V, table.MaxEntries())
	if size := int(unsafe.Sizeof(all[0])); size != int(table.ValueSize()) || size%8 != 0 {
		r.Fatalf("table %s: elements of %d bytes are read as %d", table, table.ValueSize(), size)
	}
	_, err = memory.ReadAt(unsafe.Slice((*byte)(unsafe.Pointer(&all[0])), len(all)*int(table.ValueSize())), 0)
	check(r, err)
	return all
}

func phaseOf(f bpf.NearlbFlow) bpf.NearlbFlowPhase {
	return bpf.NearlbFlowPhase(f.Word) & bpf.NearlbFlowPhaseFLOW_PHASE_MASK
}

// untag says of the entries of a set that are free that they are.
func (r *rig) untag(number uint32, set bpf.NearlbFlowSet) {
	r.Helper()
	mask := ^uint64(0)
	for way, f := range set.Ways {
		if phaseOf(f) == bpf.NearlbFlowPhaseFLOW_FREE {
			mask &^= 0xff << (8 * way)
		}
	}
	if mask == ^uint64(0) {
		return
	}
	var tags bpf.NearlbFlowBlock
	block, of := number/uint32(len(tags.Sets)), number%uint32(len(tags.Sets))
	check(r, r.objects.FlowTags.Lookup(block, &tags))
	tags.Sets[of] &= mask
	check(r, r.objects.FlowTags.Put(block, &tags))
}

// liveFlows lists the flow table.
func (r *rig) liveFlows() []bpf.NearlbFlow {
	r.Helper()
	var all []bpf.NearlbFlow
	r.editFlows(func(f *bpf.NearlbFlow) { all = append(all, *f) })
	return all
}

// seed fixes the hash of the flow table.
func (r *rig) seed(seed uint64) {
	r.Helper()
	r.edit(func(s *bpf.NearlbSettings) { s.Seed = seed })
}

// edit changes the settings.
func (r *rig) edit(change func(*bpf.NearlbSettings)) {
	r.Helper()
	var settings bpf.NearlbSettings
	if err := r.objects.Config.Lookup(uint32(0), &settings); err != nil {
		r.Fatalf("read the settings: %v", err)
	}
	change(&settings)
	if err := r.objects.Config.Put(uint32(0), &settings); err != nil {
		r.Fatalf("write the settings: %v", err)
	}
}
