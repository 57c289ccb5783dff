// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"net/netip"
	"time"

	wire "github.com/miekg/dns"
)

// The largest messages over UDP that are not compressed yet, by family of the transport (CoreDNS, after NSD).
const (
	uncompressed4 = 1480
	uncompressed6 = 1220
)

// maxDatagram is the most that UDP carries over IPv4, in bytes (RFC 768, RFC 791).
const maxDatagram = 65535 - 20 - 8

// Client says how a query came.
type Client struct {
	Address netip.Addr // its own; it has a share of the questions that wait for the upstream
	TCP     bool
	IP6     bool
}

// begun is a question that is answered as far as the view knows.
type begun struct {
	at  time.Time
	out *wire.Msg
	way Way
	ask outside // not nil: the answer is what that says
}

// outside answers a question by asking the upstream.
type outside func(ctx context.Context, from Client) (*wire.Msg, Way)

// Serve answers any query that could be parsed, in the form that its client can take: EDNS (RFC 6891), truncation in whole records.
func (r *Responder) Serve(ctx context.Context, query *wire.Msg, from Client) *wire.Msg {
	return r.end(ctx, r.begin(query), query, from)
}

// begin asks nobody, so it does not wait.
func (r *Responder) begin(query *wire.Msg) begun {
	b := begun{at: time.Now(), way: WayResponder}
	b.out, b.ask = r.checked(query)
	return b
}

// end waits for the upstream where that is to be asked.
func (r *Responder) end(ctx context.Context, b begun, query *wire.Msg, from Client) *wire.Msg {
	if b.ask != nil {
		b.out, b.way = b.ask(ctx, from)
	}
	r.observe(b.out, b.way, time.Since(b.at))
	if edns := query.IsEdns0(); edns != nil && b.out.IsEdns0() == nil {
		b.out.SetEdns0(edns.UDPSize(), edns.Do())
	}
	fit(b.out, query.IsEdns0(), from)
	return b.out
}

// checked refuses what is not asked as Kubernetes' clients ask.
func (r *Responder) checked(query *wire.Msg) (*wire.Msg, outside) {
	edns := query.IsEdns0()
	switch {
	case len(query.Question) == 0:
		return refusal(query, wire.RcodeServerFailure), nil
	case query.Question[0].Qclass != wire.ClassINET:
		return refusal(query, wire.RcodeRefused), nil
	case edns != nil && edns.Version() != 0:
		out := refusal(query, wire.RcodeBadVers)
		out.SetEdns0(edns.UDPSize(), edns.Do())
		out.IsEdns0().SetExtendedRcode(wire.RcodeBadVers)
		return out, nil
	}
	return r.answer(query)
}

// fit truncates to what the client takes: 512 bytes without EDNS, never less with it, 64 KiB over TCP. Records are in order of nearness:
// the nearest stay.
func fit(out *wire.Msg, edns *wire.OPT, from Client) {
	size := wire.MinMsgSize
	switch {
	case from.TCP:
		size = wire.MaxMsgSize
	case edns != nil:
		size = min(max(size, int(edns.UDPSize())), maxDatagram)
	}
	out.Truncate(size)
	most := uncompressed4
	if from.IP6 {
		most = uncompressed6
	}
	if !from.TCP && !out.Compress && out.Len() > most {
		out.Compress = true
	}
}
