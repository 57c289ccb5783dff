// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// publisher writes decisions straight into the tables, as few lines as will do: nothing is ever freed, the address filter
// lets everything through.
type publisher struct {
	objects  *bpf.Objects
	services map[lb.PortName]uint32
	backends map[string]uint32
	records  uint32
	slots    uint32
	keys     map[lb.ServiceName][]bpf.NearlbFrontendKey
}

func newPublisher(t testing.TB, o *bpf.Objects) *publisher {
	var s bpf.NearlbSettings
	check(t, o.Config.Lookup(uint32(0), &s))
	s.Loopback4.Bytes, s.Loopback6.Bytes = loopback4.As16(), loopback6.As16()
	for i, c := range cidrs {
		s.Cidrs[i].Address.Bytes = c.Masked().Addr().As16()
		bits := c.Bits()
		if c.Addr().Is4() {
			bits += 96
		}
		for b := range bits {
			s.Cidrs[i].Mask.Bytes[b/8] |= 0x80 >> (b % 8)
		}
	}
	s.CidrCount = uint32(len(cidrs))
	check(t, o.Config.Put(uint32(0), &s))
	for i := range o.AddressFilter.MaxEntries() {
		check(t, o.AddressFilter.Put(i, &bpf.NearlbAddressBits{Frontends: ^uint64(0), Backends: ^uint64(0)}))
	}
	return &publisher{objects: o, services: map[lb.PortName]uint32{}, backends: map[string]uint32{}, keys: map[lb.ServiceName][]bpf.NearlbFrontendKey{}}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func network(port uint16) uint16 { return port<<8 | port>>8 }

func (p *publisher) service(n lb.PortName) uint32 {
	if p.services[n] == 0 {
		p.services[n] = uint32(len(p.services) + 1)
	}
	return p.services[n]
}

func (p *publisher) backend(s lb.ServiceName, k lb.BackendKey) uint32 {
	name := s.String() + k.Port.Name + k.Port.Protocol.String() + k.Address.String()
	if p.backends[name] == 0 {
		p.backends[name] = uint32(len(p.backends) + 1)
	}
	return p.backends[name]
}

func (p *publisher) apply(t testing.TB, d lb.Decision) {
	t.Helper()
	states := map[lb.State]bpf.NearlbBackendState{lb.Active: 1, lb.Draining: 2, lb.Quiet: 3}
	for _, b := range d.Backends {
		value := bpf.NearlbBackend{Address: bpf.NearlbAddress{Bytes: b.Key.Address.Addr().As16()}, Port: network(b.Key.Address.Port()),
			State: uint8(states[b.State]), Generation: 1, Service: p.service(lb.PortName{Service: d.Service, Port: b.Key.Port.Name, Protocol: b.Key.Port.Protocol})}
		for _, l := range b.Lists {
			value.Member |= map[lb.List]uint8{lb.ListCluster: 1, lb.ListLocal: 2}[l]
		}
		check(t, p.objects.Backends.Put(p.backend(d.Service, b.Key), &value))
	}
	old := p.keys[d.Service]
	p.keys[d.Service] = nil
	for _, f := range d.Frontends {
		p.frontend(t, d.Service, f)
	}
	for _, k := range old {
		keep := false
		for _, n := range p.keys[d.Service] {
			keep = keep || n == k
		}
		if !keep {
			check(t, p.objects.Frontends.Delete(&k))
		}
	}
}

func (p *publisher) frontend(t testing.TB, s lb.ServiceName, f lb.Frontend) {
	kinds := map[lb.Kind]uint8{lb.KindClusterIP: 0, lb.KindNodePort: 1, lb.KindExternalIP: 2, lb.KindLoadBalancer: 3}
	key := bpf.NearlbFrontendKey{Address: bpf.NearlbAddress{Bytes: f.Key.Address.Addr().As16()}, Port: network(f.Key.Address.Port()), Protocol: uint8(f.Key.Protocol)}
	record := bpf.NearlbRecord{Key: key, Service: p.service(f.Port), Affinity: uint32(f.Affinity.Seconds()), Kind: kinds[f.Kind]}
	for i, side := range []lb.Side{f.Internal, f.External} {
		out := &record.Sides[i]
		out.Action = map[lb.Action]uint8{lb.Balance: 0, lb.Reject: 1, lb.Drop: 2}[side.Action]
		out.Reason = map[lb.Reason]uint8{lb.ReasonAll: 1, lb.ReasonNoEndpoints: 7, lb.ReasonNoLocalEndpoints: 8, lb.ReasonNoTopologyMatch: 9}[side.Reason]
		out.Member = map[lb.List]uint8{lb.ListCluster: 1, lb.ListLocal: 2}[side.List]
		for n, tier := range side.Tiers {
			var seeds []uint64
			for _, b := range tier.Backends {
				seeds = append(seeds, decide.BackendSeed(b))
			}
			table := decide.Maglev(seeds, decide.TableSize(len(seeds)))
			out.Tiers[n].First, out.Tiers[n].Count = p.slots, uint32(len(table))
			for _, index := range table {
				check(t, p.objects.Slots.Put(p.slots, p.backend(s, tier.Backends[index])))
				p.slots++
			}
		}
	}
	for _, r := range f.SourceRanges {
		record.Flags |= 2
		bits := uint32(r.Bits()) + 32
		if r.Addr().Is4() {
			bits += 96
		}
		id := record.Service
		k := bpf.NearlbSourceRangeKey{PrefixBits: bits, Service: id<<24 | id<<8&0xff0000 | id>>8&0xff00 | id>>24, Source: bpf.NearlbAddress{Bytes: r.Addr().As16()}}
		check(t, p.objects.SourceRanges.Put(&k, uint32(1)))
	}
	p.point(t, s, record)
	if f.Kind != lb.KindNodePort {
		record.Key.Port, record.Key.Protocol, record.Flags = 0, 0, 1
		p.point(t, s, record)
	}
}

func (p *publisher) point(t testing.TB, s lb.ServiceName, record bpf.NearlbRecord) {
	p.records++
	check(t, p.objects.Records.Put(p.records, &record))
	check(t, p.objects.Frontends.Put(&record.Key, p.records))
	p.keys[s] = append(p.keys[s], record.Key)
}

func (p *publisher) remove(t testing.TB, name lb.ServiceName) {
	p.apply(t, lb.Decision{Service: name})
}

var _ = netip.Addr{}
