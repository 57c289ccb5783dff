// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// Peer is whom a connected UDP socket of the node's own clients speaks with through a frontend.
type Peer = bpf.NearlbSockPeer

// Peers lists the connected UDP sockets that the table peers knows of, of the calling thread's network namespace, by their cookies. list is
// the program sock_peers.
func Peers(list *ebpf.Program) (map[uint64]Peer, error) {
	iterator, err := link.AttachIter(link.IterOptions{Program: list})
	if err != nil {
		return nil, fmt.Errorf("list table peers: %w", err)
	}
	defer iterator.Close()
	file, err := iterator.Open()
	if err != nil {
		return nil, fmt.Errorf("list table peers: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("list table peers: %w", err)
	}
	return readPeers(bytes.NewReader(text))
}

// peerRow is struct sock_row of bpf/lib/types.h.
type peerRow struct {
	Cookie uint64
	Peer   Peer
}

func readPeers(text io.Reader) (map[uint64]Peer, error) {
	found := map[uint64]Peer{}
	for {
		var row peerRow
		err := binary.Read(text, binary.NativeEndian, &row)
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read table peers: %w", err)
		}
		found[row.Cookie] = row.Peer
	}
}

// Abandoned tells, of a connected socket of the node's own clients, whether what it was connected to by a frontend serves no
// more: not serving, gone, or another endpoint by now; or the frontend is another service port's. remote is whom the kernel says that it is connected to: if that is
// somebody else, the socket was connected again since and is none of ours.
func (r *Reader) Abandoned(remote netip.AddrPort, p Peer) bool {
	if netip.AddrPortFrom(addrOf(p.Address), swap16(p.Port)) != remote || p.Backend >= r.store.backends.size {
		return false
	}
	b := read[backendRow](r.store.backends, p.Backend)
	return b.Generation != p.Generation || b.Service != p.Service || !usable(b.State) || r.frontendMoved(p)
}

// frontendMoved: sock_frontend_moved of bpf/lib/sock.h.
func (r *Reader) frontendMoved(p Peer) bool {
	key := frontendKey{Address: p.Frontend, Port: p.FrontendPort, Protocol: p.Protocol}
	if named := addrOf(p.Frontend); named.IsLoopback() || named.IsUnspecified() {
		settings := read[bpf.NearlbSettings](r.store.settings, 0)
		if key.Address = settings.NodePort6; named.Is4() {
			key.Address = settings.NodePort4
		}
	}
	number, found, err := r.store.frontends.get(key)
	if err != nil || !found || number >= r.store.records.size {
		return false
	}
	record := read[recordValue](r.store.records, number)
	return record.Key == key && record.Service != p.Service
}
