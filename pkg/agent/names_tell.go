// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// NamesStatus is how the agent's responder does.
type NamesStatus struct {
	Service   lb.ServiceName `json:"service"` // in whose place names are answered
	Answering bool           `json:"answering"`
	Because   string         `json:"because,omitempty"` // why not: the endpoints of Service answer meanwhile
	Upstreams []dns.Asked    `json:"upstreams"`         // of all other names
	Kernel    *KernelNames   `json:"kernel,omitempty"`  // left out: the programs are to answer none
}

// KernelNames is what the programs answer pods with.
type KernelNames struct {
	dns.Mirrored
	Answering bool   `json:"answering"`         // it does, now
	Because   string `json:"because,omitempty"` // why nothing
}

// status is nil where nobody is to answer names.
func (n *names) status() *NamesStatus {
	if n == nil {
		return nil
	}
	s := &NamesStatus{Service: n.options.Service, Upstreams: n.servers.Servers(), Because: n.whyNot()}
	s.Answering = s.Because == ""
	if n.options.FastPath {
		s.Kernel = n.kernel(s.Answering)
	}
	return s
}

// kernel is told whether the responder answers: the programs do no longer than that.
func (n *names) kernel(responder bool) *KernelNames {
	k := &KernelNames{Mirrored: n.view.Mirrored()}
	k.Answering = responder && k.Whole
	if k.Failure != nil {
		k.Because = k.Failure.Error()
	}
	return k
}

// whyNot says why questions are not answered here; "": they are.
func (n *names) whyNot() string {
	switch {
	case n.agent.reader.draining():
		return "new connections are left to kube-proxy (nearlb handover)"
	case n.ready() && !n.asked.Load():
		return "there is no such Service with a ClusterIP and port 53 (--dns-service)"
	case n.responder.Load() != nil && n.beating.Load():
		return ""
	case n.agent.source.Health().Held.Any():
		return "objects are held that the API server suddenly lists no more"
	case !n.ready():
		return "not all names are in force"
	case len(n.place().addresses) == 0:
		return "no address of the Node is on a device of this host"
	}
	return "the listeners are not open"
}

// watched tells the metrics of what the responder does.
type watched struct{ *metrics.Names }

func (w watched) Answered(qtype, rcode string, way dns.Way, took time.Duration) {
	w.Names.Answered(qtype, rcode, string(way), took)
}

func (w watched) Asked(result dns.Result, took time.Duration) { w.Names.Asked(string(result), took) }

// count is what the metrics show of the responder's state.
func (n *names) count() (s metrics.NamesState) {
	s.Answering = n.whyNot() == ""
	s.Kept, s.KeptBytes = n.forward.Kept()
	if n.options.FastPath {
		var err error
		s.InKernel, err = n.agent.reader.answered()
		n.agent.now.Load().looked(err)
	}
	return s
}
