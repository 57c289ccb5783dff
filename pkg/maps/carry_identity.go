// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// identities are the ids of another generation's tables in these: found by what they stand for, as either may have been
// published to since the other was.
type identities struct {
	to       *store
	services map[uint32]uint32 // id of a service port -> here
	old      map[uint32]backendRow
	backends map[uint32]uint32 // id -> here
	sources  map[uint8]uint8   // index in the settings' sources -> here
	nodes    map[uint16]uint16 // number of a node -> here, as of this pass
	same     bool              // every id is the same
}

// endpoint is what a backend id stands for; service is the id here.
type identity struct {
	address bpf.NearlbAddress
	port    uint16
	service uint32
}

func identify(f *bpf.Former, to *store) (*identities, error) {
	if err := f.Needs("backends", "address", "port", "state", "generation", "service"); err != nil {
		return nil, err
	}
	known := &identities{to: to, services: map[uint32]uint32{}, old: map[uint32]backendRow{}, backends: map[uint32]uint32{}, sources: map[uint8]uint8{}, same: true}
	for _, step := range []func(*bpf.Former) error{known.findServices, known.findBackends, known.findSources} {
		if err := step(f); err != nil {
			return nil, err
		}
	}
	return known, nil
}

func (k *identities) findServices(f *bpf.Former) error {
	here := map[string]uint32{}
	for key, text := range k.to.names.all() {
		if key.Kind == servicePortName {
			here[text] = key.Id
		}
	}
	if err := k.to.names.err(); err != nil {
		return fmt.Errorf("read table names: %w", err)
	}
	return bpf.Rows(f, "names", func(key nameKey, value bpf.NearlbNameValue) error {
		if key.Kind == servicePortName {
			k.note(&k.services, key.Id, here[nameText(value)])
		}
		return nil
	})
}

func (k *identities) note(in *map[uint32]uint32, old, here uint32) {
	if here != 0 {
		(*in)[old] = here
	}
	k.same = k.same && old == here
}

func (k *identities) findBackends(f *bpf.Former) error {
	here := map[identity]uint32{}
	for id := uint32(1); id < k.to.backends.size; id++ {
		if b := read[backendRow](k.to.backends, id); b.State != stateFree {
			here[identity{b.Address, b.Port, b.Service}] = id
		}
	}
	return bpf.Rows(f, "backends", func(id uint32, b backendRow) error {
		if b.State == stateFree {
			return nil
		}
		k.old[id] = b
		k.note(&k.backends, id, here[identity{b.Address, b.Port, k.services[b.Service]}])
		return nil
	})
}

func (k *identities) findSources(f *bpf.Former) error {
	here := map[bpf.NearlbAddress]uint8{}
	for i, a := range read[bpf.NearlbSettings](k.to.settings, 0).Sources {
		if a != (bpf.NearlbAddress{}) {
			here[a] = uint8(i)
		}
	}
	return bpf.Rows(f, "config", func(_ uint32, s bpf.NearlbSettings) error {
		for i, a := range s.Sources {
			if index, found := here[a]; found && a != (bpf.NearlbAddress{}) {
				k.sources[uint8(i)] = index
			}
		}
		return nil
	})
}

func (k *identities) service(id uint32) uint32 { return k.services[id] }

// carriedBackend is an endpoint as it is here now.
type carriedBackend struct {
	id    uint32
	value backendRow
}

// findNodes is asked in each pass: nodes come and go, and a number is given again once no connection here names it.
func (k *identities) findNodes(f *bpf.Former) error {
	here := map[string]uint16{}
	for key, text := range k.to.names.all() {
		if key.Kind == nodeName {
			here[text] = uint16(key.Id)
		}
	}
	if err := k.to.names.err(); err != nil {
		return fmt.Errorf("read table names: %w", err)
	}
	k.nodes = map[uint16]uint16{}
	return bpf.Rows(f, "names", func(key nameKey, value bpf.NearlbNameValue) error {
		if key.Kind == nodeName {
			k.nodes[uint16(key.Id)] = here[nameText(value)]
		}
		return nil
	})
}

// backend is nil for who is not known here, and for an id that was given to another endpoint since.
func (k *identities) backend(id uint32, generation uint16) *carriedBackend {
	old, known := k.old[id]
	here := k.backends[id]
	if !known || here == 0 || old.Generation != generation {
		return nil
	}
	now := read[backendRow](k.to.backends, here)
	if now.State == stateFree || now.Address != old.Address || now.Port != old.Port {
		return nil
	}
	return &carriedBackend{here, now}
}

// translate puts this generation's ids into an entry; false when one of them is not known here.
func (k *identities) translate(f *bpf.NearlbFlow) bool {
	if f.Flags&flowSNAT != 0 {
		source, known := k.sources[f.Source]
		if !known {
			return false
		}
		f.Source = source
	}
	if f.Flags&flowDirect != 0 {
		return true
	}
	b := k.backend(f.Backend, f.Generation)
	if b == nil {
		return false
	}
	f.Backend, f.Generation, f.Service = b.id, b.value.Generation, b.value.Service
	if f.Flags&flowCarried != 0 { // from a node that is not known here: 0, until the client's next packet comes from one that is
		setCarriedBy(f, k.nodes[carriedBy(f)])
	}
	return true
}
