// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
)

// SocketMode says whose sockets are served as they connect (--socket-lb).
type SocketMode string

// The modes. Pods that are not served as they connect are served at their devices.
const (
	HostSockets SocketMode = "host" // those of the host's network namespace
	AllSockets  SocketMode = "all"  // pods' as well
	NoSockets   SocketMode = "off"
)

// SocketOptions are of SocketHooks.
type SocketOptions struct {
	Mode SocketMode
	// Cgroup is the directory of the cgroup whose sockets are served, with those of the cgroups below it. Empty: that of
	// the whole cgroup2 hierarchy, as it is mounted.
	Cgroup string
	// LinkDir is where links are pinned (bpf.LinkDirectory). "": nothing is pinned, and Close detaches.
	LinkDir  string
	Former   func() []string          // as in Options
	Programs map[string]*ebpf.Program // by name in bpf/nearlb.c; nil: they are given later (Give), unless Mode is NoSockets
	Log      *slog.Logger
	Synced   func() // called after every Sync; may be nil
}

// SocketHooks keeps the programs of the node's own clients attached to a cgroup. Its methods may be called from any goroutine.
type SocketHooks struct {
	options SocketOptions
	log     *slog.Logger
	tried   chan struct{} // see Tried
	again   chan struct{} // asks Run for another Sync

	mu    sync.Mutex // held by Sync
	links map[string]*attachment
	fight fight  // over them
	told  string // failure as it was last said

	rowsMu sync.Mutex
	rows   []DeviceRow
}

// NewSocketHooks checks the options. Nothing is attached yet.
func NewSocketHooks(o SocketOptions) (*SocketHooks, error) {
	if !slices.Contains([]SocketMode{HostSockets, AllSockets, NoSockets}, o.Mode) {
		return nil, fmt.Errorf("read socket mode %q: want %s, %s or %s", o.Mode, HostSockets, AllSockets, NoSockets)
	}
	if err := o.check(); err != nil && o.Programs != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &SocketHooks{options: o, log: o.Log, tried: make(chan struct{}), again: make(chan struct{}, 1), links: map[string]*attachment{}}, nil
}

// check tells whether a program is missing.
func (o SocketOptions) check() error {
	for _, h := range socketHooks() {
		if o.Mode != NoSockets && o.Programs[h.program()] == nil {
			return fmt.Errorf("attach programs to a cgroup: %s is not given", h.program())
		}
	}
	return nil
}

// Give gives hooks that were made without programs those that they are to attach, before Run or Sync.
func (s *SocketHooks) Give(programs map[string]*ebpf.Program) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.options.Programs = programs
	return s.options.check()
}

// Run keeps Sync's promise until ctx ends, which is no error. What is attached stays.
func (s *SocketHooks) Run(ctx context.Context) error {
	retry := retryFirst
	for ctx.Err() == nil {
		next, broken := recheck, s.broken
		if err := s.Sync(); err != nil {
			next, retry, broken = retry, min(2*retry, retryLongest), nil
		} else {
			retry = retryFirst
		}
		if !idle(ctx, next, s.again, len(socketHooks()), broken) {
			break
		}
	}
	return nil
}

// LookAgain has running hooks look at all as after a long time: links that have lost their files are pinned again.
func (s *SocketHooks) LookAgain() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// Rows are those of the last Sync; programs that could not be attached have their error.
func (s *SocketHooks) Rows() []DeviceRow {
	s.rowsMu.Lock()
	defer s.rowsMu.Unlock()
	return slices.Clone(s.rows)
}

func (s *SocketHooks) setRows(rows []DeviceRow) {
	sortRows(rows)
	s.rowsMu.Lock()
	defer s.rowsMu.Unlock()
	s.rows = rows
}

// Close closes the links. Pinned ones stay in the kernel; the others are detached.
func (s *SocketHooks) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for name, a := range s.links {
		errs = append(errs, a.close())
		delete(s.links, name)
	}
	return errors.Join(errs...)
}
