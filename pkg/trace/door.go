// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// door is the program that a packet meets first.
type door struct {
	name    string
	program *ebpf.Program
	device  int              // index of the device that the packet arrives at; 0: the test run's own, which is the loopback device
	address net.HardwareAddr // of the device; nil: as the loopback device has it

	headerless string // name of the device if its packets have no Ethernet header, else ""
}

func (t *Tracer) door(r Request) door {
	switch r.From {
	case FromHost:
		return door{name: bpf.NearlbProgSockExplain, program: t.objects.SockExplain}
	case FromNetwork:
		return t.arrival(r.Source.Addr())
	}
	return door{name: bpf.NearlbProgFromPod, program: t.objects.FromPod}
}

// ethernet is what the kernel calls the header of most devices.
const ethernet = "ether"

// arrival is the door of a client off the node: the device where the way back to it starts. Offline no device is asked.
func (t *Tracer) arrival(client netip.Addr) door {
	d := door{name: bpf.NearlbProgFromNet, program: t.objects.FromNet}
	if t.live == nil {
		return d
	}
	routes, err := netlink.RouteGet(client.AsSlice())
	if err != nil || len(routes) == 0 {
		return d
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return d
	}
	d.device = link.Attrs().Index
	if link.Attrs().EncapType != ethernet && link.Attrs().Flags&net.FlagLoopback == 0 {
		d.headerless = link.Attrs().Name
		return d
	}
	d.address = link.Attrs().HardwareAddr
	return d
}

// sizeOfContext and ifindexInContext describe struct __sk_buff of the kernel's linux/bpf.h.
const (
	sizeOfContext    = 192
	ifindexInContext = 40
)

// arrivedAt is the context of a packet that a device received.
func arrivedAt(device int) []byte {
	context := make([]byte, sizeOfContext)
	binary.NativeEndian.PutUint32(context[ifindexInContext:], uint32(device))
	return context
}

// affinityClient is the address by which session affinity knows the client: the node's own for its sockets, which have none
// before they connect.
func (t *Tracer) affinityClient(r Request) netip.Addr {
	if r.From != FromHost {
		return r.Source.Addr()
	}
	if own, ok := t.ownAddress(r.Source.Addr().Is6()); ok {
		return own
	}
	return r.Source.Addr()
}

// ownAddress is the node's address of a family, as the programs are told: all zeros if it has none; false: nobody told them.
func (t *Tracer) ownAddress(six bool) (netip.Addr, bool) {
	var settings bpf.NearlbSettings
	if err := t.objects.Config.Lookup(uint32(0), &settings); err != nil {
		return netip.Addr{}, false
	}
	if six {
		return netip.AddrFrom16(settings.Node6.Bytes), true
	}
	return netip.AddrFrom16(settings.Node4.Bytes), true
}

// socketSource is the address that a backend sees of a socket of the node. One that asks on a loopback address connects to the
// backend from the address that its route gives; offline no route is asked, and it is the node's own.
func (t *Tracer) socketSource(client, backend netip.Addr) netip.Addr {
	if !client.IsLoopback() || backend.IsLoopback() {
		return client
	}
	if t.live != nil {
		routes, err := netlink.RouteGet(backend.AsSlice())
		if err == nil && len(routes) > 0 {
			if source, ok := netip.AddrFromSlice(routes[0].Src); ok {
				return source.Unmap()
			}
		}
	}
	if own, ok := t.ownAddress(client.Is6()); ok && !own.IsUnspecified() {
		return own.Unmap()
	}
	return client
}
