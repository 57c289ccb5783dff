// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// Dump writes what the tables say, in one order and without ids and numbers: equal for equal decisions, whatever the order
// of events, the slicing of endpoints and the restarts on the way. Removed endpoints are left out. The first row that cannot
// be read is the error.
func (r *Reader) Dump(w io.Writer) error {
	out := bufio.NewWriter(w)
	dumpSettings(out, read[bpf.NearlbSettings](r.store.settings, 0))
	for row, err := range r.Addresses() {
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "address %s %s %s\n", row.Address, row.Kind, row.Service)
	}
	for row, err := range r.Frontends() {
		if err != nil {
			return err
		}
		dumpFrontend(out, &row)
	}
	for row, err := range r.Backends() {
		if err != nil {
			return err
		}
		if row.State != bpf.StateName(stateGone) {
			fmt.Fprintf(out, "backend %s %s %s node=%s zone=%s tier=%s lists=%s\n", portText(row.Service, row.Port, row.Protocol),
				hostPort(row.Address, row.BackendPort), row.State, row.Node, row.Zone, row.Tier, strings.Join(row.Lists, ","))
		}
	}
	return out.Flush()
}

// Dump is Reader.Dump.
func (t *Tables) Dump(w io.Writer) error { return t.Reader().Dump(w) }

func dumpSettings(out io.Writer, s bpf.NearlbSettings) {
	for _, c := range s.Cidrs[:min(int(s.CidrCount), len(s.Cidrs))] {
		fmt.Fprintf(out, "service-cidr %s\n", prefixOfCidr(c.Address, c.Mask))
	}
	fmt.Fprintf(out, "loopback %s %s\n", addrOf(s.Loopback4), addrOf(s.Loopback6))
	if ports := portRange(s.SnatFirst, s.SnatCount); ports.Count() > 0 {
		fmt.Fprintf(out, "snat-ports %s\n", ports)
	}
	if s.SnatWide != 0 {
		fmt.Fprintln(out, "snat-ports beyond these")
	}
	if s.Shortcut != 0 {
		fmt.Fprintln(out, "shortcut")
	}
	dumpAddresses(out, "node", s.Node4, s.Node6)
	dumpAddresses(out, "node-port", s.NodePort4, s.NodePort6)
	if s.Disabled != 0 {
		fmt.Fprintln(out, "disabled")
	}
	if s.Draining != 0 {
		fmt.Fprintln(out, "draining")
	}
}

// dumpAddresses writes those there are, in order.
func dumpAddresses(out io.Writer, name string, all ...bpf.NearlbAddress) {
	var known []netip.Addr
	for _, a := range all {
		known = append(known, optionalAddr(a))
	}
	known = valid(known)
	slices.SortFunc(known, netip.Addr.Compare)
	for _, a := range known {
		fmt.Fprintf(out, "%s %s\n", name, a)
	}
}

func dumpFrontend(out io.Writer, row *FrontendRow) {
	fmt.Fprintf(out, "frontend %s %s %s", portText(row.Service, row.Port, row.Protocol), row.Kind, hostPort(row.Address, row.FrontendPort))
	if row.AffinitySeconds > 0 {
		fmt.Fprintf(out, " affinity=%d", row.AffinitySeconds)
	}
	if len(row.SourceRanges) > 0 {
		fmt.Fprintf(out, " sources=%s", strings.Join(row.SourceRanges, ","))
	}
	fmt.Fprintln(out)
	dumpSide(out, "internal", &row.Internal)
	dumpSide(out, "external", &row.External)
}

func dumpSide(out io.Writer, name string, side *SideRow) {
	fmt.Fprintf(out, "  %s %s %s", name, side.Action, side.Reason)
	if side.Note != "" {
		fmt.Fprintf(out, " note=%s", side.Note)
	}
	fmt.Fprintln(out)
	for _, tier := range side.Tiers {
		fmt.Fprintf(out, "    %s", tier.Tier)
		for _, b := range tier.Backends {
			fmt.Fprintf(out, " %s", hostPort(b.Address, b.Port))
		}
		fmt.Fprintln(out)
	}
}
