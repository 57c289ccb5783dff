// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
)

// heartbeatEvery is how long a round of questions lasts, and heartbeatFollow how many go by until it is looked again whom to ask.
const (
	heartbeatEvery  = time.Second
	heartbeatFollow = 5
)

// heartbeats ask other nodes whether they are there.
type heartbeats struct {
	mode lb.Ejection
	port uint16
	*pulse
	sockets helloSockets // of who asks alone
	hearsay *hearsay
	loads   *loads
	tellers helloSockets // of who asks as well

	cookies func() tables.Cookies
	keys    func() []hearsayKey
	spoke   func(netip.Addr) bool // told of each answer; may be nil
}

func newHeartbeats(o Options, cookies func() tables.Cookies, keys func() []hearsayKey) *heartbeats {
	return &heartbeats{mode: o.heartbeats(), port: o.tunnelPort(), pulse: newPulse(o.NodeName), sockets: helloSockets{}, cookies: cookies,
		hearsay: newHearsay(o.NodeName, mathrand.New(mathrand.NewPCG(mathrand.Uint64(), mathrand.Uint64()))), loads: newLoads(), tellers: helloSockets{}, keys: keys}
}

// HeartbeatStatus is which nodes answer the questions of this one.
type HeartbeatStatus struct {
	Mode   lb.Ejection `json:"mode"`   // observe or on
	Answer int         `json:"answer"` // nodes that do, of those that are asked
	Silent []string    `json:"silent"` // names of those that did
}

func (h *heartbeats) status() *HeartbeatStatus {
	answer, silent := h.count()
	return &HeartbeatStatus{Mode: h.mode, Answer: answer, Silent: silent}
}

// heartbeats is the mode in force: that of the flag, and without one on where nodes share a key.
func (o Options) heartbeats() lb.Ejection {
	switch {
	case o.Heartbeats != "":
		return o.Heartbeats
	case o.TunnelKeyFile != "":
		return lb.EjectionOn
	}
	return lb.EjectionOff
}

// followHeartbeats asks other nodes until ctx ends, and tells of those that become silent, or are that no more.
func (r *running) followHeartbeats(ctx context.Context) error {
	h := r.daemon.heartbeats
	if h.mode == lb.EjectionOff {
		return nil
	}
	if published, err := r.published(ctx); !published {
		return err
	}
	defer h.sockets.close()
	defer h.tellers.close()
	tick := time.NewTicker(heartbeatEvery / pulseParts)
	defer tick.Stop()
	h.loads.begin(r.tables)
	r.tellSilent(ctx, r.followNodes(h))
	r.tellSilent(ctx, h.remember(r.tables.NodesLeftOut()))
	for part, round := 0, 0; ; part++ {
		if part == pulseParts {
			part, round = 0, round+1
		}
		if part == 0 && round%heartbeatFollow == 0 {
			r.tellSilent(ctx, r.followNodes(h))
		}
		h.ask(part)
		h.say()
		if part == 0 {
			r.looked(h.tellLoads())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		news := h.judge(part == pulseParts-1)
		h.followNews(news)
		r.tellSilent(ctx, news)
	}
}

// followNodes has those nodes asked of which backends take connections, from this node's own addresses. While it has none, nothing changes.
func (r *running) followNodes(h *heartbeats) []pulseNews {
	own, all := ends(r.node().Addresses), map[string][]netip.Addr{}
	if len(own) == 0 {
		return nil
	}
	for name, addresses := range r.daemon.source.Nodes() {
		for _, to := range ends(addresses) {
			if slices.ContainsFunc(own, func(a netip.Addr) bool { return a.Is4() == to.Is4() }) {
				all[name] = append(all[name], to)
			}
		}
	}
	if err := h.sockets.open(own, 0, func(s *net.UDPConn) { go h.hear(s) }); err != nil {
		r.daemon.log.Debug("ask other nodes whether they are there", "error", err)
	}
	if err := h.listenAt(own); r.trouble("hear what other nodes say of silent ones", err) {
		r.daemon.log.Warn("hear what other nodes say of silent ones", "error", err)
	}
	h.hearsay.follow(all)
	if h.mode == lb.EjectionOn {
		h.loads.follow(all)
	}
	return h.follow(all, r.tables.NodesInUse())
}

// tellSilent has the ejector told, which decides what that means for backends.
func (r *running) tellSilent(ctx context.Context, news []pulseNews) {
	for _, n := range news {
		select {
		case r.pulseNews <- n:
		case <-ctx.Done():
			return
		}
	}
}

// ask sends the questions of a part of a round, once there is a key. Whoever cannot be reached does not answer.
func (h *heartbeats) ask(part int) {
	cookies := h.cookies()
	if !cookies.Asked {
		return
	}
	to := h.again
	if part == 0 {
		to = h.begin
	}
	for _, a := range to() {
		socket := h.sockets.from(a)
		if socket == nil {
			continue
		}
		// an error is of this node: whether anybody has that address is not known yet
		if _, err := socket.WriteToUDPAddrPort(helloOf(cookies, h.mark(a)), netip.AddrPortFrom(a, h.port)); err == nil {
			h.left(a)
		}
	}
}

// hear notes answers until the socket is closed.
func (h *heartbeats) hear(socket *net.UDPConn) {
	buffer := make([]byte, helloMost)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if mark, is := answerOf(buffer[:n], h.cookies()); err == nil && is && from.Port() == h.port {
			if at := from.Addr().Unmap(); h.heard(at, mark) && h.spoke != nil {
				h.spoke(at)
			}
		}
	}
}
