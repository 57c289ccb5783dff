// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/health"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/metrics"
	"github.com/nearlb/nearlb/pkg/watch"
)

// facts are what both the status and the metrics say beside what the loop's progress says, read once for either.
type facts struct {
	node     lb.Node
	eligible bool               // load balancers off the cluster may send traffic here
	serving  bool               // programs answer for Services
	programs []attach.DeviceRow // those of the cgroup, then those of devices
	checks   []health.Row       // health check node ports
	source   watch.Health
	growth   Growth
	outdated bool // the configuration changed since the start
}

// facts asks whether the programs serve before it reads their rows: a status that says so has them all.
func (r *running) facts() facts {
	serving := r.serving()
	return facts{
		node:     r.node(),
		eligible: r.daemon.source.NodeEligible(),
		serving:  serving,
		programs: slices.Concat(r.socketHooks.Rows(), r.devices.Devices()),
		checks:   r.daemon.checks.Rows(),
		source:   r.daemon.source.Health(),
		growth:   r.daemon.grown(),
		outdated: r.daemon.outdated.Load(),
	}
}

// describe fills in the status, but for its State.
func (f facts) describe(s *Status) {
	s.Node = NodeStatus{Name: f.node.Name, Zone: f.node.Zone, Region: f.node.Region, Addresses: []string{}, NodePorts: []string{}, Eligible: f.eligible}
	for _, a := range f.node.NodePortIPs {
		s.Node.NodePorts = append(s.Node.NodePorts, a.String())
	}
	for _, a := range f.node.Addresses {
		s.Node.Addresses = append(s.Node.Addresses, a.String())
	}
	s.Devices, s.Checks = append([]attach.DeviceRow{}, f.programs...), f.checks
	s.Held, s.Growth = f.source.Held, f.growth
	for _, row := range f.programs {
		if row.Error != "" && !slices.Contains(s.Trouble, row.Error) {
			s.Trouble = append(s.Trouble, row.Error)
		}
	}
	if f.source.Error != "" {
		s.Trouble = append(s.Trouble, fmt.Sprintf("objects cannot be read from the API server since %s, those known stay in force: %s",
			f.source.Since.UTC().Format(time.RFC3339), f.source.Error))
	}
}

// count fills in what the metrics show.
func (f facts) count(s *metrics.State) {
	s.Eligible = f.eligible
	s.Devices = map[string]int{}
	for _, row := range f.programs {
		if row.Error != "" {
			s.Detached++
		} else if row.Method != "" { // XDP, where packets are left to TC
			s.Devices[string(row.Method)]++
		}
	}
	s.Checks = map[string]int{"answered": 0, "failed": 0}
	for _, row := range f.checks {
		if row.Error != "" {
			s.Checks["failed"]++
		} else {
			s.Checks["answered"]++
		}
	}
	s.Unreadable = f.source.Error != ""
	s.Held = map[string]int{"Service": f.source.Held.Services, "EndpointSlice": f.source.Held.Endpoints, "Node": f.source.Held.Nodes}
	s.Outdated = f.outdated
	s.Growths, s.Cramped = f.growth.Times, f.growth.Error != ""
}
