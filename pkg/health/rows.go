// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Row is the health check of one Service.
type Row struct {
	Service    lb.ServiceName   `json:"service"`
	Port       uint16           `json:"port"`       // spec.healthCheckNodePort
	Endpoints4 int              `json:"endpoints4"` // local and ready, as told on the node's addresses of each family
	Endpoints6 int              `json:"endpoints6"`
	Listen     []netip.AddrPort `json:"listen"` // where it is answered, sorted
	Error      string           `json:"error,omitempty"`
}

// Rows are the health checks by Service.
func (s *Servers) Rows() []Row {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := []Row{}
	for _, name := range slices.SortedFunc(maps.Keys(s.checks), lb.ServiceName.Compare) {
		c := s.checks[name]
		row := Row{Service: name, Port: c.port, Endpoints4: c.V4, Endpoints6: c.V6, Listen: []netip.AddrPort{}}
		if owner := s.owners[c.port]; owner != name {
			row.Error = fmt.Sprintf("port %d answers for Service %s", c.port, owner)
		} else {
			for at := range s.servers {
				if at.Port() == c.port {
					row.Listen = append(row.Listen, at)
				}
			}
			row.Error = s.failures(c.port)
		}
		slices.SortFunc(row.Listen, netip.AddrPort.Compare)
		rows = append(rows, row)
	}
	return rows
}

// failures is why a port is not listened on everywhere; "" if it is.
func (s *Servers) failures(port uint16) string {
	texts := []string{}
	for at, err := range s.failed {
		if at.Port() == port {
			texts = append(texts, err.Error())
		}
	}
	slices.Sort(texts)
	return strings.Join(texts, "; ")
}

// Problems are the health checks that are not answered, or not on every address.
func (s *Servers) Problems() []lb.Problem {
	problems := []lb.Problem{}
	for _, row := range s.Rows() {
		if row.Error != "" {
			problems = append(problems, lb.Problem{Object: row.Service.Object(), Field: "spec.healthCheckNodePort", Message: row.Error})
		}
	}
	return problems
}
