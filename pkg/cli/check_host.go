// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/bypass"
	"github.com/nearlb/nearlb/pkg/kubeproxy"
	"github.com/nearlb/nearlb/pkg/maps"
)

// checkPorts says which source ports SNAT has, and whether the host's own connections get some of them first. Where no agent ran, it looks
// at those that one would take by default.
func checkPorts(pins *pinFlags) checkRow {
	ports, wide := snatPorts(pins)
	row := checkRow{Subject: "source ports", Result: good, Detail: ports.String() + " alone"}
	if wide {
		row.Detail = ports.String() + ", then every other one from 1024 on that is nobody's"
	}
	if err := agent.PortOverlap(ports); err != nil {
		row.Result, row.Detail = warning, err.Error()
	}
	return row
}

// checkHandover looks for rules of kube-proxy in this network namespace, and says what to do about them.
func checkHandover(ctx context.Context, pins *pinFlags, lockDir string) []checkRow {
	const subject = "kube-proxy"
	state, err := readHandover(ctx, pins, lockDir)
	if err != nil {
		return []checkRow{{subject, warning, "its rules cannot be read: " + err.Error()}}
	}
	var rows []checkRow
	k := state.KubeProxy
	if len(k.found.Hidden) > 0 {
		rows = append(rows, checkRow{subject, warning, "whether it has rules in legacy iptables cannot be read (wants CAP_NET_RAW): " + strings.Join(k.found.Hidden, ", ")})
	}
	switch {
	case len(k.Rules) > 0 && (state.Draining || state.Proxy != ""):
		rows = append(rows, checkRow{subject, good, "its rules are here: " + strings.Join(k.Rules, ", ")})
	case len(k.Rules) > 0:
		rows = append(rows, checkRow{subject, warning, "its rules are here (" + strings.Join(k.Rules, ", ") + "). " + state.Next[0].Brief})
	case len(rows) == 0:
		rows = append(rows, checkRow{subject, good, "no rules of it"})
	}
	rows = append(rows, checkConntrack(k.found, pins))
	if state.Draining {
		rows = append(rows, checkRow{"hand-over", warning, "new connections are left to kube-proxy. " + state.Next[0].Brief})
	}
	return rows
}

// checkConntrack says whether programs that this process loads could ask connection tracking, and what follows where they cannot. An
// agent may lack a capability that this process has: `nearlb status` says what the agent found.
func checkConntrack(rules kubeproxy.Rules, pins *pinFlags) checkRow {
	ports, _ := snatPorts(pins)
	return conntrackRow(rules, bpf.ProbeConntrack(), ports)
}

// conntrackRow is given why connection tracking cannot be asked; nil: it can.
func conntrackRow(rules kubeproxy.Rules, unknown error, ports maps.PortRange) checkRow {
	if unknown == nil {
		return checkRow{"connection tracking", good, "can be asked for connections that the host translates"}
	}
	if shared := agent.SharedPorts(rules, unknown, ports); shared != nil {
		return checkRow{"connection tracking", warning, "cannot be asked: " + shared.Error()}
	}
	return checkRow{"connection tracking", good, "cannot be asked, and the host translates no connections: " + unknown.Error()}
}

// checkShortcut lists what --shortcut=on would pass by, of the devices that have programs, or would.
func checkShortcut(pins *pinFlags) checkRow {
	const subject = "shortcut"
	ours, err := bpf.PinnedPrograms(pins.pinPath)
	var found []string
	if err == nil {
		found, err = bypass.Look(programmed(pins), ours)
	}
	switch {
	case err != nil:
		return checkRow{subject, warning, "what it would pass by cannot be read: " + err.Error()}
	case len(found) > 0:
		return checkRow{subject, good, "--shortcut=on would pass by, and --shortcut=auto leaves packets to: " + strings.Join(found, ", ")}
	}
	return checkRow{subject, good, "--shortcut=auto would take it: nothing is passed by"}
}

// checkTunnel says whether whoever sends as a node passes for one in the tunnel between nodes.
func checkTunnel(pins *pinFlags) checkRow {
	var row checkRow
	if err := pins.read(func(reader *maps.Reader) error {
		port, cookies, others := reader.Tunnel()
		row = tunnelRow(port, cookies.Required(), func() (bypass.Ways, error) { return bypass.WaysTo(others) })
		return nil
	}); err != nil {
		return tunnelRow(0, false, nil) // without tables there is none
	}
	return row
}

// tunnelRow is given what says how packets leave for other nodes.
func tunnelRow(port uint16, asked bool, look func() (bypass.Ways, error)) checkRow {
	row := checkRow{Subject: "tunnel", Result: good, Detail: "no tunnel between nodes"}
	if port == 0 {
		return row
	}
	if row.Detail = "packets between nodes have a cookie"; asked {
		return row
	}
	ways, err := look()
	switch {
	case err != nil:
		row.Result, row.Detail = warning, "whether packets between nodes are encrypted cannot be read: "+err.Error()
	case len(ways.Open) > 0:
		row.Result, row.Detail = warning, "packets between nodes leave by "+strings.Join(ways.Open, ", ")+" without a cookie that is asked for: whoever can send as a node there poses as any client of Services (--tunnel-key-file)"
	case ways.Number == 0:
		row.Detail = "packets between nodes have no cookie; no other node is known that they could go to"
	case ways.Heeded == ways.Number:
		row.Detail = "not taken: policies of IPsec are for the ways to all other nodes, and connections go by SNAT"
	default:
		row.Detail = "packets between nodes have no cookie, and would leave by WireGuard alone: a node that gets them by such a device takes none, and connections go by SNAT"
	}
	return row
}

// programmed are the devices that have our programs.
func programmed(pins *pinFlags) (devices []bypass.Device) {
	rows, _ := attach.List(bpf.LinkDirectory(pins.pinPath)) // what cannot be read is none of ours
	for _, row := range rows {
		d := bypass.Device{Name: row.Device, Ifindex: row.Ifindex, Pod: row.Program == "from_pod" || row.Program == "to_pod"}
		if row.Method != attach.CgroupLink && !slices.Contains(devices, d) {
			devices = append(devices, d)
		}
	}
	return devices
}

// snatPorts are those that the programs are told, and whether others serve as well; else those that an agent would take by default.
func snatPorts(pins *pinFlags) (ports maps.PortRange, wide bool) {
	_ = pins.read(func(reader *maps.Reader) error { // without tables there is nothing to read
		ports, wide = reader.SNATPorts()
		return nil
	})
	if ports.Count() > 0 {
		return ports, wide
	}
	return maps.DefaultSNATPorts(), bpf.ProbeConntrack() == nil
}
