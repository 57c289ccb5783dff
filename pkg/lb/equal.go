// SPDX-License-Identifier: Apache-2.0

package lb

import "slices"

// Equal tells whether two decisions are the same in every part, reasons and problems included. A nil list equals an empty one.
func (d Decision) Equal(o Decision) bool {
	return d.Service == o.Service && d.Ejection == o.Ejection && d.OffNode == o.OffNode && d.KeepLost == o.KeepLost && d.RetryRefused == o.RetryRefused && d.UDPRetry == o.UDPRetry && d.Balancing == o.Balancing &&
		slices.EqualFunc(d.Frontends, o.Frontends, Frontend.Equal) &&
		slices.EqualFunc(d.Backends, o.Backends, Backend.Equal) &&
		slices.Equal(d.Endpoints, o.Endpoints) &&
		slices.Equal(d.Problems, o.Problems)
}

// Equal tells whether two frontends answer their clients alike.
func (f Frontend) Equal(o Frontend) bool {
	return f.Key == o.Key && f.Port == o.Port && f.Kind == o.Kind && f.OnHost == o.OnHost && f.Affinity == o.Affinity &&
		f.Internal.Equal(o.Internal) && f.External.Equal(o.External) && slices.Equal(f.SourceRanges, o.SourceRanges)
}

// Equal compares every part.
func (s Side) Equal(o Side) bool {
	return s.Action == o.Action && s.Reason == o.Reason && s.Note == o.Note && s.Key == o.Key && s.List == o.List &&
		slices.EqualFunc(s.Tiers, o.Tiers, Tier.Equal)
}

// Equal compares name and backends.
func (t Tier) Equal(o Tier) bool { return t.Name == o.Name && slices.Equal(t.Backends, o.Backends) }

// Equal compares everything that is published of a backend.
func (b Backend) Equal(o Backend) bool {
	return b.Key == o.Key && b.Node == o.Node && b.Zone == o.Zone && b.State == o.State && b.Near == o.Near && b.Weight == o.Weight && b.Warm == o.Warm &&
		slices.Equal(b.Lists, o.Lists)
}
