// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// warming is since when the endpoints of Services with a slow start have been ready, as far as this set of tables has seen them become so.
// The zero time stands for those that were ready when the Service, or its annotation, was seen first: nobody knows since when, and a
// restart moves no connections.
type warming map[lb.ServiceName]map[warmKey]time.Time

// warmKey tells endpoints of one Service apart.
type warmKey struct {
	port    lb.PortKey
	address netip.AddrPort
}

// heat says of each endpoint how far it has come, and in how long one will have come further; 0: none will. Its work grows with the
// Service's endpoints. An endpoint that was not ready for a while begins again.
func (w warming) heat(in *lb.Input, now time.Time) (next time.Duration) {
	span := in.Service.SlowStart
	if span == 0 {
		delete(w, in.Service.Name)
		return 0
	}
	before, known := w[in.Service.Name]
	after := make(map[warmKey]time.Time, len(in.Endpoints))
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		if !e.Ready {
			continue
		}
		key := warmKey{e.Port, e.Address}
		since, was := before[key]
		if known && !was {
			since = now
		}
		if now.Sub(since) >= span {
			since = time.Time{}
		}
		after[key] = since
	}
	w[in.Service.Name] = after
	in.Endpoints = slices.Clone(in.Endpoints) // which are the source's
	for i := range in.Endpoints {             // copies that are not ready, too: the copy that counts is chosen later, and all say the same
		e := &in.Endpoints[i]
		since := after[warmKey{e.Port, e.Address}]
		if since.IsZero() {
			continue
		}
		passed := lb.WarmSteps * now.Sub(since)
		e.Warm = uint8(max(1, passed/span))
		if left := (time.Duration(e.Warm+1)*span - passed + lb.WarmSteps - 1) / lb.WarmSteps; next == 0 || left < next {
			next = left
		}
	}
	return next
}
