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

	asks *bool // not nil: the upstream is not asked, and this is set where it would be
}

// Serve answers any query that could be parsed, in the form that its client can take: EDNS (RFC 6891), truncation in whole records.
func (r *Responder) Serve(ctx context.Context, query *wire.Msg, from Client) *wire.Msg {
	began := time.Now()
	out, way := r.checked(ctx, query, from)
	if from.asks != nil && *from.asks {
		return nil
	}
	r.observe(query, out, way, time.Since(began))
	if edns := query.IsEdns0(); edns != nil && out.IsEdns0() == nil {
		out.SetEdns0(edns.UDPSize(), edns.Do())
	}
	fit(out, query.IsEdns0(), from)
	return out
}

// ServeAlone is Serve where nobody else needs to be asked. False: somebody does.
func (r *Responder) ServeAlone(query *wire.Msg, from Client) (out *wire.Msg, ok bool) {
	asks := false
	from.asks = &asks
	out = r.Serve(context.Background(), query, from)
	return out, !asks
}

// checked refuses what is not asked as Kubernetes' clients ask.
func (r *Responder) checked(ctx context.Context, query *wire.Msg, from Client) (*wire.Msg, Way) {
	edns := query.IsEdns0()
	switch {
	case len(query.Question) == 0:
		return refusal(query, wire.RcodeServerFailure), WayResponder
	case query.Question[0].Qclass != wire.ClassINET:
		return refusal(query, wire.RcodeRefused), WayResponder
	case edns != nil && edns.Version() != 0:
		out := refusal(query, wire.RcodeBadVers)
		out.SetEdns0(edns.UDPSize(), edns.Do())
		out.IsEdns0().SetExtendedRcode(wire.RcodeBadVers)
		return out, WayResponder
	}
	return r.Answer(ctx, query, from)
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
