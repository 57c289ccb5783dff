// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
)

// peers are the kernel's own hashes, used as a flow table would use them, and as large.
type peers struct{ objects PeersObjects }

// Names of their paths, of IPv4 and TCP alone: keys are as long for all.
const (
	peerHash = "kernel_hash/tcp4/established" // one look-up, found
	peerLRU  = "kernel_lru/tcp4/new"          // one look-up, not found, and an insertion
)

// openPeers makes the hashes with room for so many flows.
func openPeers(flows int) (*peers, error) {
	spec, err := LoadPeers()
	if err != nil {
		return nil, fmt.Errorf("read embedded hashes: %w", err)
	}
	for _, table := range spec.Maps {
		if strings.HasPrefix(table.Name, "peer_") {
			table.MaxEntries = uint32(flows)
		}
	}
	var p peers
	if err := spec.LoadAndAssign(&p.objects, nil); err != nil {
		return nil, fmt.Errorf("load hashes to compare with: %w", err)
	}
	return &p, nil
}

func (p *peers) Close() error { return p.objects.Close() }

// forget empties both hashes.
func (p *peers) forget() error {
	for _, table := range []*ebpf.Map{p.objects.PeerHash, p.objects.PeerLru} {
		keys, values := make([]PeersPeerKey, forgotten), make([]PeersPeerFlow, forgotten)
		var cursor ebpf.MapBatchCursor
		for {
			_, err := table.BatchLookupAndDelete(&cursor, keys, values, nil)
			if errors.Is(err, ebpf.ErrKeyNotExist) {
				break
			}
			if err != nil {
				return fmt.Errorf("empty hash to compare with: %w", err)
			}
		}
	}
	return nil
}

const forgotten = 1 << 14 // entries in one call

// peerCourses are the paths of those hashes that are asked for.
func (b *bench) peerCourses(p part) ([]*course, error) {
	if !p.wants(peerHash) && !p.wants(peerLRU) {
		return nil, nil
	}
	var err error
	if b.peers, err = openPeers(p.table); err != nil {
		return nil, err
	}
	b.closers = append(b.closers, b.peers)
	w, t := worlds()[0], &tasks{bench: b, want: p.wants}
	frame := w.frame(w.service(1))
	maker, err := b.wrap(b.peers.objects.PeerFill, frame, true)
	if err != nil {
		return nil, err
	}
	for _, n := range p.Flows {
		t.add(course{name: peerHash, flows: n, peer: true, maker: maker}, b.peers.objects.PeerFind, frame, true)
	}
	t.add(course{name: peerLRU, peer: true, fresh: true}, b.peers.objects.PeerInsert, frame, true)
	return t.all, t.err
}
