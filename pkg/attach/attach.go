// SPDX-License-Identifier: Apache-2.0

// Package attach decides which devices get which programs and keeps them there: it finds pod devices and network devices,
// follows them and their addresses as they come, go and are renamed, attaches by TCX links (Linux 6.6), else by clsact
// filters, and puts new programs in the place of old ones without a packet in between. SocketHooks does the same for the cgroup
// of the node's own clients.
//
// Among several TCX programs of one device ours are the outermost towards the pod or the network: from_pod and from_net are
// the first at ingress, to_pod and to_net the last at egress, so that the programs of a CNI see plain pod-to-pod traffic on
// both ways. TCX programs run before all clsact filters. A program that runs before to_pod and ends the chain (TCX_PASS)
// keeps to_pod from seeing the packet: DeviceRow.Others lists such neighbours.
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

	"github.com/nearlb/nearlb/pkg/bpf"
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
	FromNet *ebpf.Program // TC ingress of network devices; nil: these get no programs
	ToNet   *ebpf.Program // TC egress of network devices
	// Layer3 gives the same for network devices without an Ethernet header. It is called when there is one; nil: these fail.
	Layer3 func() (fromNet, toNet *ebpf.Program, err error)
}

func (p Programs) some() bool {
	return p.FromPod != nil || p.ToPod != nil || p.FromNet != nil || p.ToNet != nil
}

func (p Programs) check() error {
	if p.FromPod == nil || p.ToPod == nil || (p.FromNet == nil) != (p.ToNet == nil) {
		return errors.New("attach programs: not all are given")
	}
	return nil
}

// Options of a Manager.
type Options struct {
	// Pods are shell patterns of pod devices' names (path.Match). Empty: pod devices are found by themselves.
	Pods []string
	// Networks are shell patterns of network devices' names. Empty: devices that have an address of the node or the default
	// route, tunnels, and others with an address that lead to hosts. A device that both kinds of patterns name is a pod's.
	Networks []string
	// NodeAddresses are the addresses of this node, none while they are not known; nil: never known. A device with one
	// of them is a network device and no pod device; as long as none is known, no device with an address and a subnet is
	// a pod device.
	NodeAddresses func() []netip.Addr
	// Network is told of the network devices and of the host's addresses when they differ from the last time: by Look, and
	// by Sync before it attaches anything. It must not call the Manager, but for Changed. May be nil.
	Network func(Network)
	// Peers has Network told of pods' devices, too.
	Peers bool
	// LinkDir is where TCX links are pinned (bpf.LinkDirectory). "": nothing is pinned, and Close detaches.
	LinkDir string
	// Former are the directories of links of other generations (bpf.FormerLinkDirectories), as they are now. Programs that
	// translate requests are replaced in place, by the same link; those that translate replies run beside the new ones, as both
	// have connections, until their links go. May be nil.
	Former func() []string
	// Carry is called when replies of both generations are translated on every device and no request is yet sent by the new
	// programs, and again when network devices have the new ones: these should know all connections by then. May be nil.
	Carry func()
	// QdiscDir is where it is noted which clsact qdiscs are ours (bpf.QdiscDirectory). "": nowhere.
	QdiscDir string
	// Ours are the programs that filters of ours may run (bpf.PinnedPrograms): filters that run others are left alone. nil: all
	// that look like ours are.
	Ours     func() (map[ebpf.ProgramID]bool, error)
	Programs Programs // zero: they are given later (Give)
	XDP      XDPOptions
	Force    Method // changing it for attached devices leaves them without a program for a moment
	Log      *slog.Logger
	Synced   func() // called after every Sync without errors; may be nil
}

// Manager keeps programs attached. Its methods may be called from any goroutine, in the namespace they are meant for.
type Manager struct {
	options Options
	log     *slog.Logger
	changed chan struct{} // asks Run for another Sync
	tried   chan struct{} // see Tried

	dueMu   sync.Mutex
	due     change // what the news said since the last look
	fights  fights
	removed change                  // devices whose filters somebody took away: due in a moment
	given   map[ebpf.ProgramID]bool // programs that filters of ours were given

	mu       sync.Mutex     // held by Sync
	view     view           // as of the last look
	doors    map[int]door   // as they were when their programs were last looked at, by ifindex
	carried  bool           // Carry was called
	started  bool           // one Sync has looked for what earlier agents left behind
	noTCX    bool           // the kernel has no TCX
	network  *Network       // as told last; nil: not yet
	left     map[int]string // see leftBehind; nil: not looked at yet
	attached map[key]*attachment
	failing  map[key]string // errors as they were last said

	xdpTold   bool // XDP.Serve was told of servedXDP
	servedXDP []bpf.XDPDevice
	leftToTC  map[int]string // why a device's packets are, as it was last said, by ifindex

	rowsMu sync.Mutex
	rows   []DeviceRow
}

// New checks the options. Nothing is attached yet.
func New(o Options) (*Manager, error) {
	for what, patterns := range map[string][]string{"pod": o.Pods, "network": o.Networks} {
		for _, pattern := range patterns {
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
				return nil, fmt.Errorf("read pattern of %s devices %q: want a shell pattern, as veth*", what, pattern)
			}
		}
	}
	if err := o.Programs.check(); err != nil && o.Programs.some() {
		return nil, err
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
		changed:  make(chan struct{}, 1),
		tried:    make(chan struct{}),
		doors:    map[int]door{},
		attached: map[key]*attachment{},
		given:    map[ebpf.ProgramID]bool{},
		fights:   fights{},
		failing:  map[key]string{},
	}, nil
}

// Give gives a Manager that was made without programs those that it is to attach, before Run or Sync. xdp may be nil.
func (m *Manager) Give(p Programs, xdp *ebpf.Program) error {
	if err := p.check(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.options.Programs, m.options.XDP.Program = p, xdp
	return nil
}

// Changed tells a running Manager that NodeAddresses gives something else now.
func (m *Manager) Changed() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// LookAgain has a running Manager look at all devices as after a long time: links that have lost their files are pinned again.
func (m *Manager) LookAgain() { m.note(change{all: true}) }

// Devices are the rows of the last look, by device and hook; devices that failed have their error.
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
