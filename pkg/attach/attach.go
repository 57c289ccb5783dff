// SPDX-License-Identifier: Apache-2.0

// Package attach decides which devices get which programs and keeps them there: it finds pod devices, follows them as they
// come, go and are renamed, attaches by TCX links (Linux 6.6), else by clsact filters, and puts new programs in the place of
// old ones without a packet in between.
//
// Among several TCX programs of one device ours are the outermost towards the pod: from_pod is the first at ingress and
// to_pod the last at egress, so that the programs of a CNI see plain pod-to-pod traffic on both ways. TCX programs run
// before all clsact filters. A program that runs before to_pod and ends the chain (TCX_PASS) keeps to_pod from seeing the
// packet: DeviceRow.Others lists such neighbours.
//
// Everything happens in the network namespace of the calling thread.
package attach

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path"
	"sync"

	"github.com/cilium/ebpf"
)

// Method is a way of attaching a program to a device.
type Method string

// The methods. The zero value takes TCX where the kernel has it, else clsact; a device that has clsact filters of ours
// keeps them.
const (
	TCX    Method = "tcx"
	Clsact Method = "clsact"
)

// Programs are what gets attached.
type Programs struct {
	FromPod *ebpf.Program // TC ingress of pod devices
	ToPod   *ebpf.Program // TC egress of pod devices
}

// Options of a Manager. Programs are required.
type Options struct {
	// Pods are shell patterns of pod devices' names (path.Match). Empty: pod devices are found by themselves.
	Pods []string
	// NodeAddresses are the addresses of this node, none while they are not known; nil: never known. A device with one
	// of them is no pod device; as long as none is known, no device with an address and a subnet is.
	NodeAddresses func() []netip.Addr
	// LinkDir is where TCX links are pinned (bpf.LinkDirectory). "": nothing is pinned, and Close detaches.
	LinkDir  string
	Programs Programs
	Force    Method // changing it for attached devices leaves them without a program for a moment
	Log      *slog.Logger
	Synced   func() // called after every Sync without errors; may be nil
}

// Manager keeps programs attached. Its methods may be called from any goroutine, in the namespace they are meant for.
type Manager struct {
	options Options
	log     *slog.Logger
	hooks   []hook
	changed chan struct{} // asks Run for another Sync

	mu       sync.Mutex // held by Sync
	started  bool       // one Sync has looked for what earlier agents left behind
	noTCX    bool       // the kernel has no TCX
	attached map[key]*attachment
	failing  map[key]string // errors as they were last said

	rowsMu sync.Mutex
	rows   []DeviceRow
}

// New checks the options. Nothing is attached yet.
func New(o Options) (*Manager, error) {
	for _, pattern := range o.Pods {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return nil, fmt.Errorf("read pattern of pod devices %q: want a shell pattern, as veth*", pattern)
		}
	}
	if o.Programs.FromPod == nil || o.Programs.ToPod == nil {
		return nil, errors.New("attach programs: none given")
	}
	if o.Force != "" && o.Force != TCX && o.Force != Clsact {
		return nil, fmt.Errorf("read attach method %q: want %s or %s", o.Force, TCX, Clsact)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Manager{
		options:  o,
		log:      o.Log,
		hooks:    podHooks(o.Programs),
		changed:  make(chan struct{}, 1),
		attached: map[key]*attachment{},
		failing:  map[key]string{},
	}, nil
}

// Changed tells a running Manager that NodeAddresses gives something else now.
func (m *Manager) Changed() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// Devices are the rows of the last Sync, by device and hook; devices that failed have their error.
func (m *Manager) Devices() []DeviceRow {
	m.rowsMu.Lock()
	defer m.rowsMu.Unlock()
	return append([]DeviceRow(nil), m.rows...)
}

// Close closes the links. Pinned ones and filters stay in the kernel; the others are detached.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for k, a := range m.attached {
		errs = append(errs, a.close())
		delete(m.attached, k)
	}
	return errors.Join(errs...)
}
