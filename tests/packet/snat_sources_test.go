// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// configureOthers gives the nodes' device so many other addresses, and few ports for each.
func (s site) configureOthers(count int, ports maps.PortRange) {
	s.Helper()
	four, six := world{}, world{v6: true}
	device := maps.DeviceSources{Source4: four.own(), Source6: six.own()}
	for n := range count {
		device.Others = append(device.Others, four.other(n), six.other(n))
	}
	check(s, s.tables.Configure(maps.Config{ServiceCIDRs: cidrs(), Loopback4: loopback4(), Loopback6: loopback6(), SNATPorts: ports, Sources: device.Others,
		Devices: map[uint32]maps.DeviceSources{uint32(s.nodes.Attrs().Index): device}}))
}

// other is another address of the node on the device towards other nodes.
func (w world) other(n int) netip.Addr { return w.addr("172.31.0.", "fd00:31::", 100+n) }

// Towards one backend every port of the address that the route names serves, then those of the device's others; each connection keeps its own.
func TestWhereAnAddressHasNoPortLeftOthersOfItsDeviceServe(t *testing.T) {
	const ports, others = 4, 3
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		defer s.configure(snatPorts())
		s.configureOthers(others, maps.PortRange{First: 61000, Last: 61000 + ports - 1})
		s.publish(far(w, 2))
		client := func(n int) packet { return w.packet(at(w.outside(1), uint16(41000+n)), at(w.outside(10), 80)) }
		used, of := map[netip.AddrPort]bool{}, map[netip.Addr]int{}
		var all []talk
		for n := range ports * (1 + others) {
			c := s.remote(client(n), "translate_balance")
			s.goesOn(c, "translate_established")
			if first := c.out.src.Addr() == w.own(); first != (n < ports) {
				s.Errorf("connection %d leaves from %s", n, c.out.src)
			}
			used[c.out.src], of[c.out.src.Addr()] = true, of[c.out.src.Addr()]+1
			all = append(all, c)
		}
		if len(used) != len(all) || len(of) != 1+others {
			s.Errorf("%d connections have %d ports of %v", len(all), len(used), of)
		}
		s.expectPlain(client(len(all)), "drop_ports_full")
		for _, c := range all {
			s.goesOn(c, "translate_established")
		}
	}, lb.TCP, lb.UDP)
}

// What is left of a connection says which address it has.
func TestAConnectionKeepsItsAddressOverTheLossOfAnEntry(t *testing.T) {
	const alias = uint8(bpf.NearlbFlowFlagsFLOW_ALIAS)
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		defer s.configure(snatPorts())
		s.configureOthers(1, maps.PortRange{First: 61000, Last: 61000})
		s.publish(far(w, 2))
		s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
		c := s.remote(w.packet(at(w.outside(1), 41001), at(w.outside(10), 80)), "translate_balance")
		if c.out.src.Addr() != w.other(0) {
			s.Errorf("the second connection leaves from %s", c.out.src)
		}
		s.goesOn(c, "translate_established")
		s.editFlows(func(f *bpf.NearlbFlow) {
			if f.Flags&alias != 0 {
				f.Word &^= 3
			}
		})
		s.goesOn(c, map[lb.Protocol]string{lb.TCP: "translate_recover", lb.UDP: "translate_balance"}[w.protocol])
	}, lb.TCP, lb.UDP)
}
