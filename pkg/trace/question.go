// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"strings"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// Question is for the records that a name has, as a client without EDNS asks it.
type Question struct {
	Name string // absolute
	Type uint16 // of records
}

// Asked says who answers a question for a name.
type Asked struct {
	Name    string   `json:"name"`
	Type    string   `json:"type"`
	Way     string   `json:"way"`               // kernel, responder (this node's), or service: the endpoints of whom it is asked
	Because string   `json:"because,omitempty"` // why not in the kernel
	Rcode   string   `json:"rcode,omitempty"`   // of an answer in the kernel
	Answers []string `json:"answers,omitempty"` // the data of its records
}

// The ways.
const (
	WayKernel    = "kernel"
	WayResponder = "responder"
	WayService   = "service"
)

// message is the question as it is sent.
func (q *Question) message() ([]byte, error) {
	if q == nil {
		return nil, nil
	}
	m := new(wire.Msg).SetQuestion(q.Name, q.Type)
	m.Id = 1
	data, err := m.Pack()
	if err != nil {
		return nil, fmt.Errorf("question %q: %w", q.Name, err)
	}
	return data, nil
}

// asked says who answers the question of a request, of which the program decided so.
func (t *Tracer) asked(r Request, verdict bpf.Verdict, result bpf.NearlbTraceResult, out []byte) (*Asked, error) {
	a := &Asked{Name: r.Question.Name, Type: wire.TypeToString[r.Question.Type], Way: WayService}
	if verdict.Spelled() == "reject-name" {
		a.Way = WayKernel
		return a, a.read(out, r.To.Addr().Is6())
	}
	if verdict.Class == bpf.Translate && result.BackendFound != 0 {
		var b bpf.NearlbBackend
		if err := t.objects.Backends.Lookup(result.Backend, &b); err != nil {
			return nil, fmt.Errorf("read backend %d: %w", result.Backend, err)
		}
		if b.State == uint8(bpf.NearlbBackendStateBACKEND_RESPONDER) {
			a.Way = WayResponder
		}
	}
	var err error
	a.Because, err = t.notInKernel(r, a.Way)
	return a, err
}

// notInKernel says why the programs leave a question to others.
func (t *Tracer) notInKernel(r Request, way string) (string, error) {
	var settings bpf.NearlbSettings
	if err := t.objects.Config.Lookup(uint32(0), &settings); err != nil {
		return "", fmt.Errorf("read table config: %w", err)
	}
	var names bpf.NearlbAnswerSettings
	if err := t.objects.AnswerConfig.Lookup(uint32(0), &names); err != nil {
		return "", fmt.Errorf("read table answer_config: %w", err)
	}
	switch {
	case settings.Responder == 0:
		return "no responder answers on this node", nil
	case way == WayService:
		return "this node's responder is not asked here, or did not beat in the last second", nil
	case r.From != FromPod:
		return "the programs at the pods' devices alone answer names", nil
	case names.On == 0:
		return "the programs' table of names answers nothing: --dns-fast-path=false, or not all names are in it", nil
	}
	return "the programs' table has no answer to it: it says that the responder is to be asked", nil
}

// read takes the answer out of the packet that it came in.
func (a *Asked) read(frame []byte, six bool) error {
	header := etherHeader + ipv4Header + udpHeader
	if six {
		header = etherHeader + ipv6Header + udpHeader
	}
	m := new(wire.Msg)
	if err := m.Unpack(frame[min(header, len(frame)):]); err != nil {
		return fmt.Errorf("read the answer that came out: %w", err)
	}
	a.Rcode = wire.RcodeToString[m.Rcode]
	for _, rr := range m.Answer {
		a.Answers = append(a.Answers, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	return nil
}
