// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
)

func TestPodDevicesAreVethsThatLeadOutAndBelongToNobodyElse(t *testing.T) {
	node := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	nodes, gateway, subnet := having("2001:db8::1/64"), having("10.244.1.1/32"), having("10.244.1.1/24")
	pod := device{name: "veth1", veth: true, peerOutside: true}
	with := func(change func(*device)) device {
		d := pod
		change(&d)
		return d
	}
	for name, row := range map[string]struct {
		selection selection
		device    device
		want      bool
	}{
		"a veth whose peer is elsewhere":    {selection{node: node}, pod, true},
		"a veth with a gateway's address":   {selection{node: node}, with(func(d *device) { d.addresses = subnet }), true},
		"not a veth within the namespace":   {selection{node: node}, with(func(d *device) { d.peerOutside = false }), false},
		"not another kind of device":        {selection{node: node}, with(func(d *device) { d.veth = false }), false},
		"not the way of the default route":  {selection{node: node}, with(func(d *device) { d.defaultRoute = true }), false},
		"not what has the node's address":   {selection{node: node}, with(func(d *device) { d.addresses = nodes }), false},
		"a bare veth of an unknown node":    {selection{}, pod, true},
		"one with a gateway's address":      {selection{}, with(func(d *device) { d.addresses = gateway }), true},
		"not one that is in a subnet":       {selection{}, with(func(d *device) { d.addresses = subnet }), false},
		"one in a subnet that was a pod's":  {selection{left: map[int]string{0: kindPod}}, with(func(d *device) { d.addresses = subnet }), true},
		"not what was a network device":     {selection{left: map[int]string{0: kindNetwork}}, pod, false},
		"what a pattern names":              {selection{patterns: []string{"cali*", "tap[0-9]"}}, device{name: "tap7"}, true},
		"with patterns nothing by the rule": {selection{patterns: []string{"cali*"}}, pod, false},
		"not what a network pattern names":  {selection{node: node, networks: []string{"veth?"}}, pod, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := row.selection.pod(row.device); got != row.want {
				t.Errorf("got %v, want %v", got, row.want)
			}
		})
	}
}

func having(prefixes ...string) (all []address) {
	for _, p := range prefixes {
		all = append(all, address{Prefix: netip.MustParsePrefix(p)})
	}
	return all
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	for name, o := range map[string]Options{
		"a broken pattern": {Pods: []string{"veth["}},
		"an empty pattern": {Pods: []string{""}},
		"a broken network": {Networks: []string{"eth["}},
		"some programs":    {Programs: Programs{FromPod: new(ebpf.Program)}},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestPinNamesReadBack(t *testing.T) {
	k := key{17, egress}
	if got, ok := parsePin(k.pin("")); !ok || got != k {
		t.Errorf("read %q as %v, %v", k.pin(""), got, ok)
	}
	for _, name := range []string{"", "17", "x_egress", "0_ingress", "17_sideways", "-1_egress"} {
		if _, ok := parsePin(name); ok {
			t.Errorf("took %q for a pin of ours", name)
		}
	}
}
