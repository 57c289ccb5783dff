// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// What a Noted may say.
const (
	BackendAdded    = "backend-added"         // takes new connections, where a tier has it
	BackendRemoved  = "backend-removed"       // takes none any more
	BackendChanged  = "backend-changed"       // takes them in another state, or is nearer or farther
	FrontendAdded   = "frontend-added"        //
	FrontendRemoved = "frontend-removed"      //
	TrafficChanged  = "traffic-changed"       // another action, or the same for another reason
	PolicyChanged   = "policy-changed"        // another list of endpoints: traffic policies
	AffinityChanged = "affinity-changed"      //
	WeightChanged   = "weight-changed"        // a backend's share of its tier, which has the backends that it had
	SourcesChanged  = "source-ranges-changed" //
)

// Noted is one thing that a publication changed for clients.
type Noted struct {
	What     string
	Port     lb.PortName
	Backend  netip.AddrPort // zero: of a frontend
	Frontend netip.AddrPort // zero: of a backend, or of the port
	Kind     lb.Kind        // of the frontend
	From, To string
}

// Note has Stats say from now on, or no more, what changed for clients.
func (t *Tables) Note(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noting = on
}

func (c *change) note(n Noted) { c.stats.Noted = append(c.stats.Noted, n) }

// takes says whether new connections may go to a backend.
func takes(b *backendRow) bool { return b.Member != 0 && usable(b.State) }

// noteBackends tells which backends came, went, or are others.
func (c *change) noteBackends() {
	if !c.t.noting {
		return
	}
	for i := range c.backends {
		w := &c.backends[i]
		before, after := !w.fresh && takes(&w.from), takes(&w.to)
		n := Noted{Port: w.port.name(), Backend: AddrPortOf(w.to)}
		switch {
		case after && !before:
			n.What, n.To = BackendAdded, standingText(&w.to)
		case before && !after:
			n.What, n.From = BackendRemoved, standingText(&w.from)
		case before && (w.from.State != w.to.State || w.from.Tier != w.to.Tier):
			n.What, n.From, n.To = BackendChanged, standingText(&w.from), standingText(&w.to)
		default:
			continue
		}
		c.note(n)
	}
}

// standingText is "active, zone".
func standingText(b *backendRow) string { return bpf.StateName(b.State) + ", " + bpf.TierName(b.Tier) }

// noteFrontend notes how a frontend's record differs from the one before; either may be nil. If the old one was of another service port, it
// is noted there as removed.
func (c *change) noteFrontend(old, now *frontend) {
	if old != nil && old.port == nil {
		old = nil // nobody's
	}
	if !c.t.noting || now != nil && isAddressKey(now.key) || old != nil && isAddressKey(old.key) {
		return
	}
	if old != nil && (now == nil || now.port != old.port) {
		c.note(notedFrontend(FrontendRemoved, old))
	}
	if now == nil {
		return
	}
	n := notedFrontend(FrontendAdded, now)
	if old == nil || now.port != old.port {
		n.To = actionText(&now.value, int(bpf.NearlbSideIndexSIDE_INTERNAL))
		c.note(n)
		return
	}
	c.noteSides(n, &old.value, &now.value)
	c.noteWeights(old, now)
	if old.value.Affinity != now.value.Affinity {
		n.What, n.From, n.To = AffinityChanged, affinityText(old.value.Affinity), affinityText(now.value.Affinity)
		c.note(n)
	}
	if asksRanges(&old.value) != asksRanges(&now.value) {
		n.What, n.From, n.To = SourcesChanged, rangesText(&old.value), rangesText(&now.value)
		c.note(n)
	}
}

func notedFrontend(what string, f *frontend) Noted {
	return Noted{What: what, Port: f.port.name(), Kind: kindName(f.value.Kind), Frontend: netip.AddrPortFrom(addrOf(f.key.Address), swap16(f.key.Port))}
}

// noteWeights tells which backends of a frontend's tiers have other shares, once for each table of slots. The tiers have the same backends.
func (c *change) noteWeights(old, now *frontend) {
	if len(old.runs) != len(now.runs) {
		return
	}
	for i, r := range now.runs {
		was := old.runs[i]
		if was == r || slices.Contains(c.weighed, r) || !slices.Equal(was.ids, r.ids) || slices.Equal(was.shares, r.shares) {
			continue
		}
		c.weighed = append(c.weighed, r)
		for at, id := range r.ids {
			n := Noted{What: WeightChanged, Port: r.port.name(), Backend: AddrPortOf(read[backendRow](c.t.store.backends, id)),
				From: was.shareText(at), To: r.shareText(at)}
			if n.From != n.To {
				c.note(n)
			}
		}
	}
}

// shareText is "12.5 %", of new connections.
func (r *run) shareText(at int) string {
	share := 1 / float64(len(r.ids))
	if r.shares != nil {
		share = float64(r.shares[at]) / float64(r.count)
	}
	return fmt.Sprintf("%.4g %%", 100*share)
}

// noteSides tells which sides are others, both at once where they are alike.
func (c *change) noteSides(n Noted, old, now *recordValue) {
	internal, external := int(bpf.NearlbSideIndexSIDE_INTERNAL), int(bpf.NearlbSideIndexSIDE_EXTERNAL)
	alike := actionText(old, internal) == actionText(old, external) && actionText(now, internal) == actionText(now, external)
	for _, i := range []int{internal, external} {
		side := map[int]string{internal: "from this node: ", external: "from outside: "}[i]
		if alike && i == external {
			continue
		}
		if alike {
			side = ""
		}
		n.What, n.From, n.To = TrafficChanged, side+actionText(old, i), side+actionText(now, i)
		if n.From == n.To {
			continue
		}
		if was, is := &old.Sides[i], &now.Sides[i]; was.Member != 0 && is.Member != 0 && was.Member != is.Member && !fallsBack(was.Reason) && !fallsBack(is.Reason) {
			n.What = PolicyChanged
		}
		c.note(n)
	}
}

// fallsBack says whether a side's list is another than its policy's for want of an endpoint on this node.
func fallsBack(reason uint8) bool { return reason == uint8(bpf.NearlbReasonREASON_LOCAL_FALLBACK) }

// actionText is "balance same-zone".
func actionText(r *recordValue, side int) string {
	s := &r.Sides[side]
	text := bpf.ActionName(s.Action) + " " + bpf.ReasonName(s.Reason)
	if note := bpf.NoteName(s.Note); note != "" {
		text += ", " + note
	}
	return text
}

func affinityText(seconds uint32) string {
	if seconds == 0 {
		return "none"
	}
	return fmt.Sprintf("%ds", seconds)
}

func rangesText(r *recordValue) string {
	if asksRanges(r) {
		return "restricted"
	}
	return "anybody"
}
