// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/vishvananda/netns"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/kubeproxy"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/sockdiag"
)

// handoverState is how far this node is on the way between kube-proxy and nearlb.
type handoverState struct {
	Installed bool           `json:"installed"`                  // there are tables of nearlb
	Draining  bool           `json:"draining"`                   // new connections are left to kube-proxy
	Proxy     string         `json:"serviceProxyName,omitempty"` // a trial: nearlb serves the Services with this label alone
	KubeProxy kubeProxyState `json:"kubeProxy"`
	Nearlb    protocolCounts `json:"nearlb"` // connections that nearlb translates
	Next      []handoverStep `json:"next"`

	names bool // the agent is to answer names
}

// kubeProxyState is what kube-proxy has on this node.
type kubeProxyState struct {
	Running     string         `json:"running"` // how it was seen to run; "": it was not
	Rules       []string       `json:"rules"`
	Connections protocolCounts `json:"connections"` // to Services, that its rules translate
	Sockets     int            `json:"udpSockets"`  // UDP sockets of this node that are connected to Services through it

	found kubeproxy.Rules
}

// protocolCounts counts connections.
type protocolCounts struct {
	TCP  int `json:"tcp"`
	UDP  int `json:"udp"`
	SCTP int `json:"sctp"`
}

func (c protocolCounts) text() string {
	if c == (protocolCounts{}) {
		return "none"
	}
	text := fmt.Sprintf("%d TCP, %d UDP", c.TCP, c.UDP)
	if c.SCTP > 0 {
		text += fmt.Sprintf(", %d SCTP", c.SCTP)
	}
	return text
}

func (k kubeProxyState) text() string {
	runs := "not seen to run"
	if k.Running != "" {
		runs = "runs (" + k.Running + ")"
	}
	if len(k.Rules) == 0 {
		return runs + "; none of its rules"
	}
	return runs + "; its rules are here:"
}

func (k kubeProxyState) connectionsText() string {
	text := k.Connections.text()
	if k.Sockets > 0 {
		text += fmt.Sprintf("; %d connected UDP sockets of this node", k.Sockets)
	}
	return text
}

func readHandover(ctx context.Context, pins *pinFlags, lockDir string) (state handoverState, err error) {
	frontends := map[kubeproxy.Frontend]bool{}
	err = pins.read(func(reader *maps.Reader) error {
		state.Installed, state.Draining = true, reader.Draining()
		open := reader.Open()
		state.Nearlb = protocolCounts{open[lb.TCP], open[lb.UDP], open[lb.SCTP]}
		return readFrontends(reader, frontends)
	})
	if err != nil && !errors.Is(err, bpf.ErrNoAgent) {
		return state, err
	}
	if status, err := agent.ReadStatus(lockDir, pins.pinPath); err == nil { // without one nobody knows of a trial
		state.Proxy, state.names = status.Proxy, status.Names != nil
	}
	if state.KubeProxy, err = readKubeProxy(ctx, frontends); err != nil {
		return state, err
	}
	state.Next = nextSteps(state)
	return state, nil
}

func readFrontends(reader *maps.Reader, frontends map[kubeproxy.Frontend]bool) error {
	for row, err := range reader.Frontends() {
		if err != nil {
			return err
		}
		frontends[kubeproxy.Frontend{Protocol: row.Protocol, Address: netip.AddrPortFrom(row.Address, row.FrontendPort)}] = true
	}
	return nil
}

func readKubeProxy(ctx context.Context, frontends map[kubeproxy.Frontend]bool) (state kubeProxyState, err error) {
	if state.found, err = kubeproxy.Look(); err != nil {
		return state, err
	}
	state.Rules, state.Running = command.List(state.found.Marks()), kubeproxy.Running(ctx)
	connections, err := kubeproxy.Connections()
	if err != nil {
		return state, err
	}
	counts := map[lb.Protocol]int{}
	for _, c := range connections {
		protocol := lb.Protocol(c.Protocol)
		if frontends[kubeproxy.Frontend{Protocol: protocol.String(), Address: c.Frontend}] {
			counts[protocol]++
		}
	}
	state.Connections = protocolCounts{counts[lb.TCP], counts[lb.UDP], counts[lb.SCTP]}
	_, err = sockdiag.End(netns.None(), func(_ uint64, remote netip.AddrPort) bool {
		if frontends[kubeproxy.Frontend{Protocol: lb.UDP.String(), Address: remote}] {
			state.Sockets++
		}
		return false
	})
	return state, err
}

// endSockets ends the node's UDP sockets that kube-proxy's rules serve. Those that nearlb serves are connected to a backend.
func endSockets(pins *pinFlags, out io.Writer) error {
	frontends := map[kubeproxy.Frontend]bool{}
	if err := pins.read(func(reader *maps.Reader) error { return readFrontends(reader, frontends) }); err != nil {
		return err
	}
	ended, err := sockdiag.End(netns.None(), func(_ uint64, remote netip.AddrPort) bool {
		return frontends[kubeproxy.Frontend{Protocol: lb.UDP.String(), Address: remote}]
	})
	fmt.Fprintf(out, "ended %d UDP sockets\n", ended)
	return err
}
