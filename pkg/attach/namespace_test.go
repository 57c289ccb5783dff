// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/tests/privileged"
)

// inNode runs the test on a thread of its own in a fresh network namespace that plays a node.
func inNode(t *testing.T, test func(n *node)) {
	t.Helper()
	privileged.Require(t)
	n := &node{T: t, linkDir: bpf.LinkDirectory(privileged.Bpffs(t))}
	privileged.Namespace(t, func(own *os.File) {
		n.own = own
		n.programs, n.counter = countingPrograms(t, nil)
		test(n)
	})
}

// node is the namespace of the calling thread.
type node struct {
	*testing.T
	linkDir  string
	own      *os.File
	programs Programs
	counter  *ebpf.Map
}

// pod makes a namespace with one device, whose other end is here.
func (n *node) pod(name string, index int) *os.File {
	n.Helper()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		n.Fatal(err)
	}
	pod, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { pod.Close() })
	n.enter(n.own)
	n.must(netlink.LinkAdd(&netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: name, Index: index},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsFd(pod.Fd()),
	}))
	n.up(name)
	n.enter(pod)
	n.up("eth0")
	n.enter(n.own)
	return pod
}

func (n *node) qdiscDir() string { return bpf.QdiscDirectory(filepath.Dir(filepath.Dir(n.linkDir))) }

// programIDs are the kernel's numbers of the node's programs.
func (n *node) programIDs() map[ebpf.ProgramID]bool {
	ids := map[ebpf.ProgramID]bool{}
	for _, p := range []*ebpf.Program{n.programs.FromPod, n.programs.ToPod, n.programs.FromNet, n.programs.ToNet} {
		if p == nil {
			continue
		}
		info, err := p.Info()
		n.must(err)
		id, _ := info.ID()
		ids[id] = true
	}
	return ids
}

func (n *node) enter(ns *os.File) {
	n.Helper()
	n.must(netns.Set(netns.NsHandle(ns.Fd())))
}

func (n *node) up(name string) { n.must(netlink.LinkSetUp(n.link(name))) }

func (n *node) link(name string) netlink.Link {
	n.Helper()
	l, err := netlink.LinkByName(name)
	n.must(err)
	return l
}

func (n *node) address(device, prefix string) {
	n.Helper()
	a, err := netlink.ParseAddr(prefix)
	n.must(err)
	a.Flags = unix.IFA_F_NODAD
	n.must(netlink.AddrAdd(n.link(device), a))
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// manager makes a Manager that is closed with the test.
func (n *node) manager(change func(*Options)) *Manager {
	n.Helper()
	o := Options{LinkDir: n.linkDir, QdiscDir: n.qdiscDir(), Programs: n.programs}
	if change != nil {
		change(&o)
	}
	m, err := New(o)
	n.must(err)
	n.Cleanup(func() { m.Close() })
	return m
}

// rows reads from the kernel.
func (n *node) rows() []DeviceRow {
	n.Helper()
	rows, err := List(n.linkDir)
	n.must(err)
	return rows
}

// shown lists what rows show, as "device program method".
func shown(rows []DeviceRow) []string {
	list := []string{}
	for _, r := range rows {
		list = append(list, r.Device+" "+r.Program+" "+string(r.Method))
	}
	return list
}

// sendFrom sends n packets of an experimental protocol from the pod's device as raw frames, so that no stack adds any. It tells
// how many arrived: a queue of the kernel that is full drops some, and says so at the device.
func (n *node) sendFrom(pod *os.File, packets int) (arrived uint64) {
	n.Helper()
	n.enter(pod)
	defer n.enter(n.own)
	device, err := net.InterfaceByName("eth0")
	n.must(err)
	dropped := n.droppedBy("eth0")
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	n.must(err)
	defer unix.Close(fd)
	frame := make([]byte, 60)
	copy(frame, "\xff\xff\xff\xff\xff\xff")
	frame[12], frame[13] = byte(testProtocol>>8), byte(testProtocol&0xff)
	for range packets {
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: device.Index}); err != unix.ENOBUFS { // which the device counts
			n.must(err)
		}
	}
	return uint64(packets) - (n.droppedBy("eth0") - dropped)
}

// droppedBy is how many packets a device could not hand to its other end.
func (n *node) droppedBy(device string) uint64 {
	n.Helper()
	return n.link(device).Attrs().Statistics.TxDropped
}

// testProtocol is the EtherType for experiments (IEEE 802).
const testProtocol = 0x88b5

// countingPrograms count the packets of testProtocol and pass everything on. Two calls give programs of different ids that
// count into one map when it is given.
func countingPrograms(t *testing.T, counter *ebpf.Map) (Programs, *ebpf.Map) {
	t.Helper()
	if counter == nil {
		var err error
		counter, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { counter.Close() })
	}
	program := func(name string, slot int32) *ebpf.Program { return countingProgram(t, name, counter, slot) }
	flat := Programs{FromNet: program("from_net", 0), ToNet: program("to_net", 1)}
	return Programs{
		FromPod: program("from_pod", 0), ToPod: program("to_pod", 1), FromNet: program("from_net", 0), ToNet: program("to_net", 1),
		Layer3: func() (*ebpf.Program, *ebpf.Program, error) { return flat.FromNet, flat.ToNet, nil },
	}, counter
}

func countingProgram(t *testing.T, name string, counter *ebpf.Map, slot int32) *ebpf.Program {
	t.Helper()
	const protocol = 16 // offset of __sk_buff.protocol
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:    name,
		Type:    ebpf.SchedCLS,
		License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R6, asm.R1, protocol, asm.Word),
			asm.HostTo(asm.BE, asm.R6, asm.Half),
			asm.JNE.Imm(asm.R6, testProtocol, "out"),
			asm.StoreImm(asm.RFP, -4, int64(slot), asm.Word),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, counter.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
			asm.Mov.Imm(asm.R0, -1).WithSymbol("out"), // TC_ACT_UNSPEC: whoever comes next
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// counted is how many packets from_pod saw.
func (n *node) counted() uint64 {
	n.Helper()
	var count uint64
	n.must(n.counter.Lookup(uint32(0), &count))
	return count
}

// settled waits until from_pod saw so many packets, or more, and gives their number: what is sent to the other end of a pair of
// devices is looked at there a little later, and much later where the processor has other things to do.
func (n *node) settled(want uint64) uint64 {
	n.Helper()
	for deadline := time.Now().Add(time.Minute); n.counted() < want && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	return n.counted()
}

func (n *node) pinned() []string {
	n.Helper()
	files, err := filepath.Glob(filepath.Join(n.linkDir, "*"))
	n.must(err)
	names := []string{}
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	return names
}
