// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// clashes are the frontends that several Services ask for: the tables give each to one. The publisher itself is asked, with
// frontends alone and over plain memory.
func clashes(decisions []lb.Decision) ([]lb.Problem, error) {
	room := uint32(16)
	for _, d := range decisions {
		room += 3 * uint32(len(d.Frontends))
	}
	fake := maps.NewFake(bpf.Sizes{
		Frontends: room, Records: 2 * room, Services: room, Names: room, Backends: 16, Slots: 16,
		FlowSets: 1, Affinity: 1, Fragments: 1, SourceRanges: 1,
	})
	for _, d := range decisions {
		bare := lb.Decision{Service: d.Service, Frontends: slices.Clone(d.Frontends)}
		for i := range bare.Frontends {
			f := &bare.Frontends[i]
			f.SourceRanges = nil
			f.Internal = lb.Side{Action: lb.Reject, Reason: lb.ReasonNoEndpoints, List: lb.ListCluster}
			f.External = f.Internal
		}
		if _, err := fake.Apply(bare); err != nil {
			return nil, err
		}
	}
	return fake.Problems(), nil
}
