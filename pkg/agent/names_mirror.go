// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/dns"
	tables "github.com/nearlb/nearlb/pkg/maps"
)

// mirror has the names written to tables, from which the programs answer questions of pods. Nobody publishes to these tables yet. The
// programs answer while the heart beats that they ask of the responder, too.
func (n *names) mirror(to *tables.Tables) {
	if n == nil || !n.options.FastPath {
		return
	}
	said := "" // by one at a time: the view's methods
	n.view.Mirror(dns.NewResponder(n.view, n.answering()), to.Answers(), func(err error) {
		if text := err.Error(); text != said {
			said = text
			n.agent.log.Error("answer names in the kernel: the responder does", "error", err)
		}
	})
}

// inKernel tells whether the programs answer a question of a pod.
func (n *names) inKernel(name string, qtype uint16) bool {
	if !n.options.FastPath || !n.beating.Load() || qtype != wire.TypeA && qtype != wire.TypeAAAA {
		return false
	}
	labels := wire.SplitDomainName(strings.ToLower(name))
	known, err := n.agent.now.Load().tables.Answers().Know(labels, qtype == wire.TypeAAAA)
	return known && err == nil
}
