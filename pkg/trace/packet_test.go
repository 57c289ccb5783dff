// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/nearlb/nearlb/pkg/lb"
)

func TestFirstPacketsAreWellFormed(t *testing.T) {
	for _, family := range [][2]string{
		{"10.244.1.1:40000", "10.96.0.10:80"},
		{"[fd00:10:244:1::1]:40000", "[fd00:10:96::a]:80"},
	} {
		source, to := netip.MustParseAddrPort(family[0]), netip.MustParseAddrPort(family[1])
		for _, protocol := range []lb.Protocol{lb.TCP, lb.UDP, lb.SCTP, ICMP} {
			t.Run(family[0]+" "+protocol.String(), func(t *testing.T) { checkPacket(t, source, to, protocol) })
		}
	}
}

// checkPacket has gopacket read the frame and compute its checksums.
func checkPacket(t *testing.T, source, to netip.AddrPort, protocol lb.Protocol) {
	frame := firstPacket(nil, source, to, protocol, nil)
	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	if failure := packet.ErrorLayer(); failure != nil {
		t.Fatal(failure.Error())
	}
	for _, layer := range packet.Layers() {
		if layer, ok := layer.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			if err := layer.SetNetworkLayerForChecksum(packet.NetworkLayer()); err != nil {
				t.Fatal(err)
			}
		}
	}
	failures, mismatches := packet.VerifyChecksums()
	for _, m := range mismatches {
		if protocol != lb.SCTP { // left at zero: the programs neither check nor mend it
			t.Errorf("checksum of layer %v: %+v", m.Layer.LayerType(), m.ChecksumVerificationResult)
		}
	}
	if failures != nil {
		t.Error(failures)
	}
	if network := packet.NetworkLayer().NetworkFlow(); network.Src().String() != source.Addr().String() || network.Dst().String() != to.Addr().String() {
		t.Errorf("addresses %v", network)
	}
	if protocol == ICMP {
		return
	}
	gotSource, gotTo, ok := ends(frame)
	if !ok || gotSource != source || gotTo != to {
		t.Errorf("ends are %v %v %v", gotSource, gotTo, ok)
	}
	if tcp, ok := packet.TransportLayer().(*layers.TCP); ok && (!tcp.SYN || tcp.ACK) {
		t.Error("the TCP packet is no SYN")
	}
}

func TestNoFrameIsReadPastItsEnd(t *testing.T) {
	whole := firstPacket(nil, netip.MustParseAddrPort("[fd00::1]:1"), netip.MustParseAddrPort("[fd00::2]:2"), lb.TCP, nil)
	for n := range whole {
		ends(whole[:n])
	}
	whole[etherHeader] = 0
	if _, _, ok := ends(whole); ok {
		t.Error("IP version 0 was read")
	}
}

func TestSourcePortsDiffer(t *testing.T) {
	for _, start := range []string{"10.0.0.1:0", "10.0.0.1:1024", "10.0.0.1:50000", "10.0.0.1:65535"} {
		r := Request{Source: netip.MustParseAddrPort(start)}
		seen := map[uint16]bool{}
		for i := range MostPackets {
			port := r.source(i).Port()
			if seen[port] || port < lowestPort {
				t.Fatalf("from %s: port %d of packet %d is low or came before", start, port, i)
			}
			seen[port] = true
		}
	}
}

func TestNamesAreSplitIntoServiceAndPort(t *testing.T) {
	for name, want := range map[string][2]string{
		"default/web:http/TCP": {"default/web", "http"},
		"default/web/UDP":      {"default/web", ""},
		"default/web":          {"default/web", ""},
	} {
		service, port := splitName(name)
		if service != want[0] || port == nil || *port != want[1] {
			t.Errorf("%s: %s %v, want %v", name, service, *port, want)
		}
	}
}
