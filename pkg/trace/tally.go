// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/maps"
)

// tally adds up what happened to the packets of one request.
type tally struct {
	request  Request
	door     door
	verdicts map[string]int // by Verdict.Spelled
	first    *bpf.Verdict   // of the first packet
	service  string
	port     *string
	backends map[netip.AddrPort]*Backend
	way      *Way       // of the first packet to a backend on another node
	source   netip.Addr // of the first packet that went on; invalid: none did
	asked    *Asked     // the first packet; nil: nothing
}

func newTally(r Request, door door) *tally {
	return &tally{request: r, door: door, verdicts: map[string]int{}, backends: map[netip.AddrPort]*Backend{}}
}

// tally adds one packet.
func (t *Tracer) tally(to *tally, client netip.AddrPort, result bpf.NearlbTraceResult, out []byte) error {
	verdict := bpf.VerdictOf(result.Verdict)
	to.verdicts[verdict.Spelled()]++
	if to.first == nil {
		to.first = &verdict
		if to.request.Question != nil {
			asked, err := t.asked(to.request, verdict, result, out)
			if err != nil {
				return err
			}
			to.asked = asked
		}
	}
	if result.FrontendFound != 0 && to.service == "" {
		name, err := t.name(result.Service)
		if err != nil {
			return err
		}
		to.service, to.port = splitName(name)
	}
	if verdict.Class == bpf.Pass {
		to.went(client.Addr())
	}
	if verdict.Class != bpf.Translate {
		return nil
	}
	source, backend, err := t.translated(to.request, client, result, out)
	if err != nil {
		return err
	}
	to.went(source.Addr())
	if result.BackendFound == 0 {
		return nil
	}
	if to.backends[backend] == nil {
		tier, err := t.nearness(result.Backend)
		if err != nil {
			return err
		}
		b := &Backend{Address: backend.Addr(), Port: backend.Port(), Tier: tier, Source: source.Addr()}
		if to.request.From == FromNetwork {
			if b.Way, err = t.way(result, to.request, to.door); err != nil {
				return err
			}
		}
		to.way = cmp.Or(to.way, b.Way)
		to.backends[backend] = b
	}
	to.backends[backend].Count++
	return nil
}

// went notes a packet that went on.
func (to *tally) went(source netip.Addr) {
	if !to.source.IsValid() {
		to.source = source
	}
}

// translated is where a translated packet comes from and goes to: what its bytes say. A socket of the node sends none to the
// frontend: it connects to the backend.
func (t *Tracer) translated(r Request, client netip.AddrPort, result bpf.NearlbTraceResult, out []byte) (source, backend netip.AddrPort, err error) {
	if r.From == FromHost {
		var b bpf.NearlbBackend
		if err := t.objects.Backends.Lookup(result.Backend, &b); err != nil {
			return source, backend, fmt.Errorf("read backend %d: %w", result.Backend, err)
		}
		backend = maps.AddrPortOf(b)
		return netip.AddrPortFrom(t.socketSource(client.Addr(), backend.Addr()), client.Port()), backend, nil
	}
	source, backend, ok := ends(out)
	if !ok {
		return source, backend, fmt.Errorf("read the packet that came out: %d bytes of neither IPv4 nor IPv6", len(out))
	}
	return source, backend, nil
}

func (to *tally) answer() Answer {
	a := Answer{
		ID: to.request.ID, Verdict: string(to.first.Class), Reason: to.first.Reason,
		Service: to.service, Port: to.port, Backends: []Backend{}, Way: to.way, Question: to.asked,
	}
	if to.source.IsValid() {
		a.Source = &to.source
		a.SNAT = to.source != to.request.Source.Addr()
	}
	if len(to.verdicts) > 1 {
		a.Verdicts = to.verdicts
	}
	for _, b := range to.backends {
		a.Backends = append(a.Backends, *b)
	}
	if !slices.ContainsFunc(a.Backends, func(b Backend) bool { return b.Source != to.source || !sameWay(b.Way, to.way) }) {
		for i := range a.Backends { // the answer says it once
			a.Backends[i].Source, a.Backends[i].Way = netip.Addr{}, nil
		}
	}
	slices.SortFunc(a.Backends, func(x, y Backend) int {
		return cmp.Or(x.Address.Compare(y.Address), cmp.Compare(x.Port, y.Port))
	})
	return a
}

func sameWay(a, b *Way) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// name is the name of a service port, as the agent wrote it: "namespace/name:port/TCP".
func (t *Tracer) name(id uint32) (string, error) {
	name, err := t.text(uint32(bpf.NearlbNameKindNAME_SERVICE_PORT), id)
	if err != nil {
		return "", fmt.Errorf("read name of service port %d: %w", id, err)
	}
	return name, nil
}

// text is the name of an id of a kind.
func (t *Tracer) text(kind, id uint32) (string, error) {
	var value bpf.NearlbNameValue
	key := bpf.NearlbNameKey{Kind: kind, Id: id}
	if err := t.objects.Names.Lookup(&key, &value); err != nil {
		return "", err
	}
	text := make([]byte, len(value.Text))
	for i, c := range value.Text {
		text[i] = byte(c)
	}
	text, _, _ = bytes.Cut(text, []byte{0})
	return string(text), nil
}

// splitName takes the protocol off a service port's name and the port apart; nil: the address belongs to the Service, the
// port to none of its ports.
func splitName(name string) (service string, port *string) {
	if i := strings.LastIndexByte(name, '/'); i > 0 && strings.IndexByte(name, '/') < i {
		name = name[:i]
	}
	service, text, _ := strings.Cut(name, ":")
	return service, &text
}

// nearness is the tier of a backend.
func (t *Tracer) nearness(id uint32) (string, error) {
	var backend bpf.NearlbBackend
	if err := t.objects.Backends.Lookup(id, &backend); err != nil {
		return "", fmt.Errorf("read backend %d: %w", id, err)
	}
	return bpf.TierName(backend.Tier), nil
}
