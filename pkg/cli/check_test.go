// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/binary"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// chainMessage is what the kernel answers for one chain: nfgenmsg, then two attributes.
func chainMessage(family byte, table, chain string) []byte {
	message := []byte{family, 0, 0, 0}
	for kind, text := range []string{unix.NFTA_CHAIN_TABLE: table, unix.NFTA_CHAIN_NAME: chain} {
		if text == "" {
			continue
		}
		message = binary.NativeEndian.AppendUint16(message, uint16(4+len(text)+1))
		message = binary.NativeEndian.AppendUint16(message, uint16(kind))
		message = append(append(message, text...), 0)
		for len(message)%4 != 0 {
			message = append(message, 0)
		}
	}
	return message
}

func TestKubeProxysChainsAreKnown(t *testing.T) {
	for want, message := range map[string][]byte{
		"nftables table ip kube-proxy":            chainMessage(unix.AF_INET, "kube-proxy", "services"),
		"iptables chain KUBE-SERVICES in ip6 nat": chainMessage(unix.AF_INET6, "nat", "KUBE-SERVICES"),
	} {
		if got := chainMark(message); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, other := range [][]byte{nil, {2}, chainMessage(unix.AF_INET, "nat", "POSTROUTING"), {2, 0, 0, 0, 255, 255, 1, 0}} {
		if got := chainMark(other); got != "" {
			t.Errorf("%v was taken for kube-proxy's: %s", other, got)
		}
	}
}

func TestWithoutPermissionOnlyThatIsSaid(t *testing.T) {
	rows := checkKernel([]bpf.Finding{
		{Feature: "permission to use BPF", Fatal: true, Error: "creating map: operation not permitted"},
		{Feature: "TCX links", Error: "load program: operation not permitted"},
		{Feature: "kernel BTF", Fatal: true, Means: "build it so", Since: "5.2", Error: "no such file"},
	})
	if len(rows) != 3 || rows[1].Result != missing || rows[2].Detail != "build it so (since Linux 5.2): no such file" {
		t.Errorf("got %v", rows)
	}
}

func TestAFeatureThatCanBeMissedIsAWarning(t *testing.T) {
	rows := checkKernel([]bpf.Finding{{Feature: "TCX links", Since: "6.6", Means: "clsact instead", Error: "invalid argument"}})
	if len(rows) != 2 || rows[1].Result != warning || !strings.Contains(rows[1].Detail, "since Linux 6.6") {
		t.Errorf("got %v", rows)
	}
}
