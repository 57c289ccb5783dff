// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

func portNumber(n int) lb.PortName {
	return lb.PortName{Service: serviceNumber(n), Port: "http", Protocol: lb.TCP}
}

// Whoever makes rows of a few ports alone has to know which: where some are left out, and where connections find no backend.
func TestAMeterKnowsWhatIsLeftOutAndRefused(t *testing.T) {
	b := newBench(t, memoryStore(tinySizes()))
	local := made(3, active(4)...)
	local.Frontends[0].Internal = lb.Side{Action: lb.Drop, Reason: lb.ReasonNoLocalEndpoints}
	outside := made(4, active(5)...)
	outside.Frontends[0].External = lb.Side{Action: lb.Drop, Reason: lb.ReasonNoLocalEndpoints}
	f := addFrontend(&outside, lb.Side{Action: lb.Drop, Reason: lb.ReasonNoLocalEndpoints}, lb.KindNodePort, netip.MustParseAddrPort("192.0.2.1:30004"))
	f.Internal.Action = lb.Drop
	for _, d := range []lb.Decision{made(1, weighted(1, 1, 1, 1)...), made(2), local, outside} {
		b.apply(t, d)
	}
	suspect := b.suspectOf(t, 0)
	if refused, err := b.Eject(suspect, b.store.clock.boot()+1e9, 1); refused != "" || err != nil {
		t.Fatal(refused, err)
	}
	c := &counting{bench: b, t: t}
	c.look()
	refusing, err := c.meter.Refusing()
	if err != nil {
		t.Fatal(err)
	}
	if want := map[lb.PortName]bool{portNumber(2): true, portNumber(3): true}; !maps.Equal(refusing, want) {
		t.Errorf("refusing are %v, want %v", refusing, want)
	}
	want := map[lb.PortName]EndpointCount{portNumber(1): {Ready: 4, All: 4, Ejected: 1}, portNumber(2): {}, portNumber(3): {Ready: 1, All: 1}, portNumber(4): {Ready: 1, All: 1}}
	if endpoints := c.meter.Endpoints(); !maps.Equal(endpoints, want) {
		t.Errorf("endpoints are %v, want %v", endpoints, want)
	}
	if !b.Readmit(suspect) || c.meter.Endpoints()[portNumber(1)].Ejected != 0 {
		t.Error("a backend that is back counts as left out")
	}
}
