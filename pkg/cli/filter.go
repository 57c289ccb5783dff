// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
)

// filter keeps the rows that a person asked for. What was not asked for is zero and keeps everything.
type filter struct {
	service string
	node    string
	backend addressFlag
	client  addressFlag
	all     bool // verdicts: those that counted nothing too
}

// addressFlag is an IP address, with a port or without.
type addressFlag struct {
	addr netip.Addr
	port uint16 // 0: any
}

func (f *addressFlag) Type() string { return "IP[:PORT]" }

func (f *addressFlag) String() string {
	switch {
	case !f.addr.IsValid():
		return ""
	case f.port == 0:
		return f.addr.String()
	}
	return netip.AddrPortFrom(f.addr, f.port).String()
}

// Set reads 10.244.1.2, 10.244.1.2:8080, fd00::1 or [fd00::1]:8080.
func (f *addressFlag) Set(text string) (err error) {
	f.addr, f.port, err = parseAddress(text)
	return err
}

// keeps says whether an address and port are the ones asked for.
func (f *addressFlag) keeps(addr netip.Addr, port uint16) bool {
	return !f.addr.IsValid() || f.addr == addr && (f.port == 0 || f.port == port)
}

// keepsService takes namespace/name, with or without :port, or a name alone in any namespace.
func (f *filter) keepsService(service, port string) bool {
	want, wantPort, hasPort := strings.Cut(f.service, ":")
	if hasPort && wantPort != port {
		return false
	}
	return want == "" || want == service || strings.HasSuffix(service, "/"+want)
}

func (f *filter) keepsNode(node string) bool { return f.node == "" || f.node == node }

// narrows says whether any row may have been left out because of what was asked for.
func (f filter) narrows() bool {
	f.all = false
	return f != filter{}
}

// Which filters a command has.
const (
	byService = 1 << iota
	byNode
	byBackend
	byClient
)

func (f *filter) add(cmd *cobra.Command, which int, pins *pinFlags) {
	flags := cmd.Flags()
	if which&byService != 0 {
		flags.StringVar(&f.service, "service", "", "only this Service: `namespace/name[:port]`, or its name in any namespace")
		complete(cmd, "service", func() []string { return liveServices(pins) })
	}
	if which&byNode != 0 {
		flags.StringVar(&f.node, "node", "", "only what has to do with backends on the node of this `name`")
		complete(cmd, "node", func() []string { return liveNodes(pins) })
	}
	if which&byBackend != 0 {
		flags.Var(&f.backend, "backend", "only this backend")
	}
	if which&byClient != 0 {
		flags.Var(&f.client, "client", "only this client")
	}
}
