// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
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
	warm    bool // the tables held Services at the start
	metrics *metrics.Metrics

	mu     sync.Mutex
	listen map[string]string // server -> address
	fill   []tables.FillRow  // as of the last look
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
	node := r.source.Node()
	s := Status{
		Version:  r.options.Version,
		PID:      os.Getpid(),
		Written:  time.Now(),
		Node:     NodeStatus{Name: node.Name, Zone: node.Zone, Region: node.Region, Addresses: []string{}},
		Source:   r.origin,
		PinPath:  r.options.PinPath,
		Failing:  []FailingService{},
		Devices:  append([]attach.DeviceRow{}, r.devices.Devices()...),
		Problems: slices.Concat([]lb.Problem{}, r.source.Problems(), r.tables.Problems()),
		Trouble:  append([]string{}, r.objects.Kept...),
	}
	for _, row := range s.Devices {
		if row.Error != "" {
			s.Trouble = append(s.Trouble, row.Error)
		}
	}
	for _, a := range node.Addresses {
		s.Node.Addresses = append(s.Node.Addresses, a.String())
	}
	r.describe(&s)
	slices.SortFunc(s.Problems, lb.Problem.Compare)
	s.Problems = slices.Compact(s.Problems)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Tables, s.Listen = r.fill, maps.Clone(r.listen)
	return s
}

// look reads how full the tables are.
func (r *running) look() {
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

// report keeps the status file up to date until ctx ends, then says that the agent stopped.
func (r *running) report(ctx context.Context) error {
	path := StatusPath(r.options.LockDir, r.options.PinPath)
	ticker := time.NewTicker(statusEvery)
	defer ticker.Stop()
	r.look()
	for {
		r.write(path, r.status())
		select {
		case <-ctx.Done():
			last := r.status()
			last.State = Stopped
			r.write(path, last)
			return nil
		case <-ticker.C:
			r.look()
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
	countDevices(&s, r.devices.Devices())
	s.Problems = len(r.status().Problems)
	return s
}
