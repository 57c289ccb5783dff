// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// running is the work with one set of tables: what daemon.start opened, and what its goroutines share.
type running struct {
	*loop // publishes to the tables

	daemon *daemon // what outlives the tables: close leaves it alone

	// Set by start, and not changed until close.
	plan        plan
	warm        bool         // programs serve from the tables since an earlier agent
	objects     *bpf.Objects // of the tables
	tables      *tables.Tables
	devices     *attach.Manager
	socketHooks *attach.SocketHooks

	programs *bpf.Objects  // what has the programs: objects, or another look at what these have, and programs over it; set when loaded is closed
	loaded   chan struct{} // closed: programs are loaded

	leaving sync.Mutex      // held by whoever carries or takes over (upgrade.go)
	carrier *tables.Carrier // nil: nothing is to be carried over

	pulseNews    chan pulseNews          // of nodes, for who leaves backends out
	hostNews     chan struct{}           // gets something when the host may have to be looked at (host.go)
	ours         map[ebpf.ProgramID]bool // programs that may be on devices, when followShortcut looked last
	shortcutNews chan struct{}           // the same of what the shortcut passes by (shortcut.go)

	mu     sync.Mutex
	faults faults // as of the last status

	filling sync.Mutex // held by tableFill
	fill    []tables.FillRow
	filled  time.Time // when fill was counted
}

// status is what the file says now.
func (r *running) status() Status {
	f := r.facts()
	s := Status{
		Version:  r.daemon.options.Version,
		PID:      os.Getpid(),
		Source:   r.daemon.origin,
		Proxy:    r.daemon.options.ProxyName,
		PinPath:  r.daemon.options.PinPath,
		May:      append([]string{}, r.daemon.may...),
		Failing:  []FailingService{},
		Problems: append([]lb.Problem{}, r.daemon.source.Problems()...),
		here:     slices.Concat(r.tables.Problems(), r.daemon.checks.Problems(), r.loop.ways.problems()),
		Ejected:  r.leftOut(),
		Trouble:  r.kept(),
		Names:    r.daemon.names.status(),
	}
	if r.daemon.tunnelPort() != 0 {
		nodes, leaving := r.daemon.source.Nodes(), r.daemon.options.leaving != nil
		if leaving || !r.tunnelAsked() {
			nodes = nil
		}
		s.Tunnel = r.daemon.peers.status(r.daemon.options.OffNode, r.daemon.options.OffNode == lb.OffNodeDSR || r.loop.ways.anyDirect(), nodes, r.daemon.options.NodeName)
		s.Tunnel.Unused, s.Tunnel.Leaving = nodes == nil, leaving
	}
	if r.daemon.heartbeats.mode != lb.EjectionOff {
		s.Heartbeats = r.daemon.heartbeats.status()
	}
	if err := r.daemon.peers.keyTrouble(); err != nil {
		s.Trouble = append(s.Trouble, err.Error())
	}
	if r.daemon.options.Shortcut != ShortcutOff {
		passing := r.passing.last()
		s.Shortcut = &passing
	}
	if err := r.daemon.loader.gone(); err != nil {
		s.Trouble = append(s.Trouble, err.Error())
	}
	f.describe(&s)
	r.progress.describe(&s)
	if !f.serving {
		s.State = Starting
	}
	s.Problems = append(s.Problems, s.here...)
	slices.SortFunc(s.Problems, lb.Problem.Compare)
	s.Problems = slices.Compact(s.Problems)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Listen, r.faults = r.daemon.listening(), faultsOf(s.Problems)
	s.Started = r.daemon.started
	return s
}

func (r *running) leftOut() (all []LeftOut) {
	for _, v := range r.tables.Ejected() {
		all = append(all, LeftOut{v.Port.Service, v.Port.Port, v.Address})
	}
	return all
}

// serving tells whether programs answer for Services: those of this agent, or of an earlier one.
func (r *running) serving() bool {
	return r.warm || closed(r.devices.Tried()) && closed(r.socketHooks.Tried())
}

// fillEvery keeps several who scrape from counting as often.
const fillEvery = time.Second

// tableFill is how full the tables are, for a scrape.
func (r *running) tableFill() []tables.FillRow {
	r.filling.Lock()
	defer r.filling.Unlock()
	if time.Since(r.filled) < fillEvery {
		return r.fill
	}
	rows := []tables.FillRow{}
	for row, err := range r.daemon.reader.Fill() {
		if r.trouble("read tables", err) {
			r.daemon.log.Error("read tables", "error", err)
		}
		if err != nil {
			return r.fill
		}
		rows = append(rows, row)
	}
	r.fill, r.filled = rows, time.Now()
	return rows
}

// looked notes whether the counters could be read.
func (r *running) looked(err error) {
	if r.trouble("read counters", err) {
		r.daemon.log.Error("read counters", "error", err)
	}
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

// count is the state for the metrics.
func (r *running) count() metrics.State {
	s := r.progress.count()
	r.facts().count(&s)
	s.Draining = r.daemon.reader.draining()
	problems := r.lastFaults()
	s.Problems, s.External = problems.all, problems.external
	return s
}
