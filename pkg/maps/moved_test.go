// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// nodePort is a decision of a Service whose port has this NodePort; its number says which endpoint.
func nodePort(n int, protocol lb.Protocol, port uint16) lb.Decision {
	d := made(n, active(n)...)
	number := lb.PortKey{Protocol: protocol}
	for i := range d.Backends {
		d.Backends[i].Key.Port = number
	}
	f := d.Frontends[0]
	f.Key = lb.FrontendKey{Address: netip.MustParseAddrPort("192.0.2.1:1"), Protocol: protocol}
	f.Key.Address = netip.AddrPortFrom(f.Key.Address.Addr(), port)
	f.Port.Protocol, f.Port.Port, f.Kind = protocol, "", lb.KindNodePort
	for _, side := range []*lb.Side{&f.Internal, &f.External} {
		tiers := make([]lb.Tier, len(side.Tiers))
		for i, tier := range side.Tiers {
			tiers[i].Name = tier.Name
			for _, b := range tier.Backends {
				tiers[i].Backends = append(tiers[i].Backends, lb.BackendKey{Port: number, Address: b.Address})
			}
		}
		side.Tiers = tiers
	}
	d.Frontends = []lb.Frontend{f}
	return d
}

func TestDatagramsFollowAFrontendToAnotherService(t *testing.T) {
	for _, between := range []string{"at once", "after nobody had it", "after a restart"} {
		for _, protocol := range []lb.Protocol{lb.UDP, lb.TCP} {
			t.Run(protocol.String()+" "+between, func(t *testing.T) {
				store := memoryStore(tinySizes())
				b := newBench(t, store)
				b.apply(t, nodePort(1, protocol, 30080))
				key := keyOf(nodePort(1, protocol, 30080).Frontends[0].Key)
				flow := func(place uint32, flags uint8) {
					putFlow(store, place, bpf.NearlbFlow{Word: flowLive, Touched: store.clock.jiffies(), Frontend: key.Address, FrontendPort: key.Port,
						Protocol: key.Protocol, Flags: flags, Service: b.frontends[key].port.id, Seen: uint32(bpf.NearlbFlowSeenSEEN_REPLY)})
				}
				flow(1, 0)
				flow(2, flowSNAT|flowAlias)
				flow(3, flowDirect)
				switch moved := nodePort(1, protocol, 30081); between {
				case "at once": // the first name has it for as long as it asks
					b.apply(t, nodePort(2, protocol, 30080))
					b.apply(t, moved)
				case "after a restart":
					b.apply(t, moved)
					b = newBench(t, store)
					b.apply(t, nodePort(2, protocol, 30080))
				default:
					b.apply(t, moved)
					b.later()
					b.apply(t, nodePort(2, protocol, 30080))
				}
				flow(5, 0) // of the one that has it now
				b.later()
				for place, ended := range map[uint32]bool{1: protocol == lb.UDP, 2: protocol == lb.UDP, 3: false, 5: false} {
					if word := *flowWord(store.flows, place, wordOfFlow); word&flowPhase == flowLive == ended {
						t.Errorf("entry %d has word %d, want one that is free: %t", place, word, ended)
					}
				}
				if len(b.moved) > 0 {
					t.Errorf("frontends that are searched for: %v", b.moved)
				}
			})
		}
	}
}
