// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// flowsMax keeps the default table half empty, as it should be in use; flowsMost is what any table is measured with.
const (
	flowsMax  = 1 << 17
	flowsMost = 1 << 21
)

// newBackends is how many backends a new flow is balanced over.
const newBackends = 10

// bench is the programs with tables of their own, and one service in each world.
type bench struct {
	objects *bpf.Objects
	floors  BenchObjects
	count   *counter
	closers []io.Closer
	tables  *maps.Tables
	peers   *peers // nil: nothing is compared with them
}

// world is one address family and transport protocol.
type world struct {
	name     string
	v6       bool
	protocol lb.Protocol
}

func worlds() []world {
	return []world{{"tcp4", false, lb.TCP}, {"udp4", false, lb.UDP}, {"tcp6", true, lb.TCP}, {"udp6", true, lb.UDP}}
}

func (w world) address(v4, v6 string) netip.Addr {
	if w.v6 {
		return netip.MustParseAddr(v6)
	}
	return netip.MustParseAddr(v4)
}

func (w world) client() netip.AddrPort {
	return netip.AddrPortFrom(w.address("10.1.1.0", "fd00:1::100"), 10000)
}
func (w world) stranger() netip.AddrPort {
	return netip.AddrPortFrom(w.address("198.51.100.7", "2001:db8::7"), 443)
}

// service is a frontend with a number of backends.
func (w world) service(backends int) netip.AddrPort {
	n := map[bool]int{true: 1, false: 2}[backends == 1]
	return netip.AddrPortFrom(w.address(fmt.Sprintf("10.96.0.%d", n), fmt.Sprintf("fd00:96::%x", n)), 80)
}

func (w world) backend(n int) netip.AddrPort {
	return netip.AddrPortFrom(w.address(fmt.Sprintf("10.2.0.%d", n+1), fmt.Sprintf("fd00:2::%x", n+1)), 8080)
}

func (w world) decision(backends int) lb.Decision {
	name := lb.ServiceName{Namespace: "bench", Name: fmt.Sprintf("%s-%d", w.name, backends)}
	d := lb.Decision{Service: name}
	tier := lb.Tier{Name: lb.TierNode}
	for n := range backends {
		key := lb.BackendKey{Port: lb.PortKey{Protocol: w.protocol}, Address: w.backend(n)}
		tier.Backends = append(tier.Backends, key)
		d.Backends = append(d.Backends, lb.Backend{Key: key, State: lb.Active, Near: lb.TierNode, Lists: []lb.List{lb.ListCluster}})
	}
	side := lb.Side{Action: lb.Balance, Reason: lb.ReasonAll, List: lb.ListCluster, Tiers: []lb.Tier{tier}}
	d.Frontends = []lb.Frontend{{
		Key: lb.FrontendKey{Address: w.service(backends), Protocol: w.protocol}, Port: lb.PortName{Service: name, Protocol: w.protocol},
		Kind: lb.KindClusterIP, Internal: side, External: side,
	}}
	return d
}

// loadService is a frontend whose ten backends get new connections by their load.
func (w world) loadService() netip.AddrPort {
	return netip.AddrPortFrom(w.address("10.96.0.3", "fd00:96::3"), 80)
}

func (w world) byLoad() lb.Decision {
	d := w.decision(newBackends)
	d.Service.Name += "-load"
	d.Balancing = lb.BalanceLeastConnections
	d.Frontends[0].Port.Service = d.Service
	d.Frontends[0].Key.Address = w.loadService()
	return d
}

// tellOthers has backends compared by what other nodes have as well.
func (b *bench) tellOthers() {
	var all []maps.Others
	loads, _ := b.tables.Loads(0)
	for _, l := range loads {
		all = append(all, maps.Others{ID: l.ID, Generation: l.Generation, Open: 1000, Unsure: 1})
	}
	b.tables.TellOthers(all)
}

// open loads the programs and publishes the services.
func (p part) open() (*bench, error) {
	o := bpf.Options{XDP: p.wantsXDP(), Sizes: bpf.Sizes{FlowSets: uint32(p.table / len(bpf.NearlbFlowSet{}.Ways)), Frontends: 1024, Records: 1024, Slots: 1 << 20, Backends: 1024, Services: 1024, Names: 1024}}
	if p.carried {
		o.Knobs = map[string]any{"tunnel_there": uint8(1)}
	}
	objects, err := bpf.Load(o)
	if err != nil {
		return nil, err
	}
	b := &bench{objects: objects, closers: []io.Closer{objects}, count: openCounter()}
	err = b.prepare()
	if err == nil && o.XDP {
		err = b.prepareXDP(p.carried)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *bench) prepare() error {
	if err := LoadBenchObjects(&b.floors, nil); err != nil {
		return fmt.Errorf("load floor programs: %w", err)
	}
	b.closers = append(b.closers, &b.floors)
	if err := b.floors.Hash.Put(make([]byte, b.floors.Hash.KeySize()), uint32(1)); err != nil {
		return fmt.Errorf("fill floor table: %w", err)
	}
	tables, err := maps.Open(&b.objects.NearlbMaps)
	if err != nil {
		return err
	}
	b.tables = tables
	if err := tables.Configure(maps.Config{}); err != nil {
		return err
	}
	for _, w := range worlds() {
		for _, d := range []lb.Decision{w.decision(1), w.decision(newBackends), w.byLoad()} {
			if _, err := tables.Apply(d); err != nil {
				return err
			}
		}
	}
	return nil
}

// forget empties the flow table.
func (b *bench) forget() error { return b.objects.ForgetFlows() }

// counted reads one verdict counter of one hook.
func (b *bench) counted(hook bpf.NearlbHook, verdict bpf.NearlbVerdict) (uint64, error) {
	var each []bpf.NearlbVerdictCounter
	index := uint32(hook)*uint32(bpf.NearlbVerdictVERDICT_MAX) + uint32(verdict)
	if err := b.objects.Verdicts.Lookup(index, &each); err != nil {
		return 0, fmt.Errorf("read table verdicts: %w", err)
	}
	var n uint64
	for _, c := range each {
		n += c.Packets
	}
	return n, nil
}

func (b *bench) close() error {
	var errs []error
	for _, c := range append(b.closers, b.count) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// wrap loads a wrapper that restores a frame, moves it from flow to flow and runs a program over it. client is the end of
// the frame that changes.
func (b *bench) wrap(target *ebpf.Program, f frame, clientIsSource bool) (*wrapper, error) {
	spec, err := LoadBench()
	if err != nil {
		return nil, fmt.Errorf("read embedded wrapper: %w", err)
	}
	l := f.layout()
	at := map[string]uint32{"address_at": l.destination, "port_at": l.destinationPort, "network_fix_at": l.id, "transport_fix_at": l.data}
	if clientIsSource {
		at["address_at"], at["port_at"] = l.source, l.sourcePort
	}
	for name, value := range at {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s of the wrapper: %w", name, err)
		}
	}
	w := &wrapper{frame: f}
	if err := spec.LoadAndAssign(&w.objects, nil); err != nil {
		return nil, fmt.Errorf("load wrapper: %w", err)
	}
	b.closers = append(b.closers, &w.objects)
	calls := w.objects.Target
	w.program = w.objects.Wrapper
	if target.Type() == ebpf.XDP {
		w.program, calls = w.objects.WrapperXdp, w.objects.TargetXdp
	}
	if err := calls.Put(uint32(0), target); err != nil {
		return nil, fmt.Errorf("point wrapper at its program: %w", err)
	}
	if err := w.objects.Frames.Put(uint32(0), f.bytes()); err != nil {
		return nil, fmt.Errorf("give wrapper its frame: %w", err)
	}
	return w, nil
}
