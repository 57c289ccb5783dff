// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/health"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// count is what the metrics show of the loop's work.
func (p *progress) count() metrics.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := metrics.State{Services: len(p.services), Dirty: len(p.dirty), Failing: len(p.failing), Devices: map[string]int{}}
	p.tally.fill(&s)
	return s
}

// countChecks adds the health check node ports.
func countChecks(s *metrics.State, rows []health.Row) {
	s.Checks = map[string]int{"answered": 0, "failed": 0}
	for _, row := range rows {
		if row.Error != "" {
			s.Checks["failed"]++
		} else {
			s.Checks["answered"]++
		}
	}
}

// countDevices adds what is attached.
func countDevices(s *metrics.State, rows []attach.DeviceRow) {
	for _, row := range rows {
		if row.Error != "" {
			s.Detached++
		} else {
			s.Devices[string(row.Method)]++
		}
	}
}
