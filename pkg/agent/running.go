// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/health"
	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/metrics"
	"github.com/nearlb/nearlb/pkg/watch"
)

// running is an agent at work: what its goroutines share.
type running struct {
	*loop
	options Options
	log     *slog.Logger
	objects *bpf.Objects
	source  watch.Source
	origin  string // of the objects, for people
	tables  *tables.Tables
	reader  *reader
	devices *attach.Manager
	sockets *attach.Sockets
	checks  *health.Servers
	warm    bool // the tables held Services at the start
	metrics *metrics.Metrics
	carrier *tables.Carrier // nil: nothing is to be carried over
	leaving sync.Mutex      // held by whoever carries or takes over
	may     []string        // names of the capabilities that the process has kept

	mu     sync.Mutex
	listen map[string]string // server -> address
	fill   []tables.FillRow  // as of the last look
	faults faults            // as of the last status
}

// listens notes where a server can be reached.
func (r *running) listens(server, address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listen[server] = address
	r.tell()
}

// status is what the file says now.
func (r *running) status() Status {
	node, serving := r.node(), r.serving() // before the rows are read, so that a status that says so has them
	s := Status{
		Version:  r.options.Version,
		PID:      os.Getpid(),
		Written:  time.Now(),
		Node:     NodeStatus{Name: node.Name, Zone: node.Zone, Region: node.Region, Addresses: []string{}, NodePorts: []string{}, Eligible: r.source.NodeEligible()},
		Source:   r.origin,
		Proxy:    r.options.ProxyName,
		PinPath:  r.options.PinPath,
		May:      append([]string{}, r.may...),
		Failing:  []FailingService{},
		Checks:   r.checks.Rows(),
		Devices:  append(append([]attach.DeviceRow{}, r.sockets.Rows()...), r.devices.Devices()...),
		Problems: append([]lb.Problem{}, r.source.Problems()...),
		here:     slices.Concat(r.tables.Problems(), r.checks.Problems()),
		Trouble:  append([]string{}, r.objects.Kept...),
	}
	for _, row := range s.Devices {
		if row.Error != "" && !slices.Contains(s.Trouble, row.Error) {
			s.Trouble = append(s.Trouble, row.Error)
		}
	}
	health := r.source.Health()
	s.Held = health.Held
	if health.Error != "" {
		s.Trouble = append(s.Trouble, fmt.Sprintf("objects cannot be read from the API server since %s, those known stay in force: %s",
			health.Since.UTC().Format(time.RFC3339), health.Error))
	}
	for _, a := range node.NodePortIPs {
		s.Node.NodePorts = append(s.Node.NodePorts, a.String())
	}
	for _, a := range node.Addresses {
		s.Node.Addresses = append(s.Node.Addresses, a.String())
	}
	r.describe(&s)
	if !serving {
		s.State = Starting
	}
	s.Problems = append(s.Problems, s.here...)
	slices.SortFunc(s.Problems, lb.Problem.Compare)
	s.Problems = slices.Compact(s.Problems)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Tables, s.Listen, r.faults = r.fill, maps.Clone(r.listen), faultsOf(s.Problems)
	return s
}

// serving tells whether programs answer for Services: those of this agent, or of an earlier one.
func (r *running) serving() bool {
	return r.warm || closed(r.devices.Tried()) && closed(r.sockets.Tried())
}

// look reads how full the tables are and what passed between zones.
func (r *running) look() {
	if err := r.metrics.Look(); r.trouble("read counters", err) {
		r.log.Error("read counters", "error", err)
	}
	rows := []tables.FillRow{}
	for row, err := range r.reader.Fill() {
		if r.trouble("read tables", err) {
			r.log.Error("read tables", "error", err)
		}
		if err != nil {
			return
		}
		rows = append(rows, row)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fill = rows
}

// lastFill is how full the tables were at the last look.
func (r *running) lastFill() []tables.FillRow {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fill
}

// faults are how many problems of objects there are. To count them takes as long as to write the status.
type faults struct{ all, external int }

func faultsOf(problems []lb.Problem) faults {
	f := faults{all: len(problems)}
	for _, p := range problems {
		if p.Field == lb.KindExternalIP.Field() {
			f.external++
		}
	}
	return f
}

func (r *running) lastFaults() faults {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.faults
}

// report keeps the status file up to date until ctx ends, then says that the agent stopped.
func (r *running) report(ctx context.Context) error {
	path := StatusPath(r.options.LockDir, r.options.PinPath)
	ticker := time.NewTicker(statusEvery)
	defer ticker.Stop()
	r.look()
	r.lookAtHost()
	for {
		now := r.status()
		r.write(path, now)
		r.source.Announce(now.troubles())
		select {
		case <-ctx.Done():
			last := r.status()
			last.State = Stopped
			r.write(path, last)
			return nil
		case <-ticker.C:
			r.look()
			r.lookAtHost()
			r.lookAtRules()
		case <-r.news:
			pause(ctx, statusPause)
		}
	}
}

func (r *running) write(path string, s Status) {
	err := s.write(path)
	if r.trouble("write status", err) {
		r.log.Error("write status", "error", err)
	}
}

// statusPause is the least time between two writes of the status.
const statusPause = 100 * time.Millisecond

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// count is the state for the metrics.
func (r *running) count() metrics.State {
	s := r.progress.count()
	countDevices(&s, slices.Concat(r.sockets.Rows(), r.devices.Devices()))
	countChecks(&s, r.checks.Rows())
	s.Eligible, s.Draining = r.source.NodeEligible(), r.reader.draining()
	problems := r.lastFaults()
	s.Problems, s.External = problems.all, problems.external
	health := r.source.Health()
	s.Unreadable = health.Error != ""
	s.Held = map[string]int{"Service": health.Held.Services, "EndpointSlice": health.Held.Endpoints, "Node": health.Held.Nodes}
	return s
}
