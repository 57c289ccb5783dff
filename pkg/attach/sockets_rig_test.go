// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/tests/privileged"
)

// group is a cgroup of the test's own and the programs that are to be attached to it.
type group struct {
	*node
	dir      string
	programs map[string]*ebpf.Program
}

// inGroup runs the test in a fresh network namespace, outside of the cgroup.
func inGroup(t *testing.T, test func(g *group)) {
	t.Helper()
	dir := privileged.Cgroup(t)
	inNode(t, func(n *node) {
		n.up("lo")
		test(&group{node: n, dir: dir, programs: socketPrograms(n)})
	})
}

// sockets makes a Sockets that is closed with the test.
func (g *group) sockets(change func(*SocketOptions)) *SocketHooks {
	g.Helper()
	o := SocketOptions{Mode: HostSockets, Cgroup: g.dir, LinkDir: g.linkDir, Programs: g.programs}
	if change != nil {
		change(&o)
	}
	s, err := NewSocketHooks(o)
	g.must(err)
	g.Cleanup(func() { s.Close() })
	return s
}

// socketPrograms count the calls of every hook and let them go on. Two calls give programs of different ids, which count
// into one map.
func socketPrograms(n *node) map[string]*ebpf.Program {
	n.Helper()
	programs := map[string]*ebpf.Program{}
	for _, h := range socketHooks() {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: h.program(), Type: ebpf.CGroupSockAddr, AttachType: h.attach, License: "GPL",
			Instructions: asm.Instructions{
				asm.StoreImm(asm.RFP, -4, 0, asm.Word),
				asm.Mov.Reg(asm.R2, asm.RFP),
				asm.Add.Imm(asm.R2, -4),
				asm.LoadMapPtr(asm.R1, n.counter.FD()),
				asm.FnMapLookupElem.Call(),
				asm.JEq.Imm(asm.R0, 0, "out"),
				asm.Mov.Imm(asm.R1, 1),
				asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
				asm.Mov.Imm(asm.R0, 1).WithSymbol("out"), // the call goes on
				asm.Return(),
			},
		})
		n.must(err)
		n.Cleanup(func() { p.Close() })
		programs[h.program()] = p
	}
	return programs
}

// calls has a socket of the cgroup name an address, a number of times: each is one call of a hook.
func (g *group) calls(dir string, number int) {
	g.Helper()
	g.must(privileged.JoinCgroup(dir))
	defer func() { g.must(privileged.LeaveCgroup(dir)) }()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	g.must(err)
	defer unix.Close(fd)
	for range number {
		g.must(unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 9}))
	}
}

// settle waits until the cgroup has a number of programs at connect4: the kernel lets go of an unpinned link a little later.
func (g *group) settle(dir string, programs int) {
	g.Helper()
	own, err := os.Open(dir)
	g.must(err)
	defer own.Close()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		q, err := link.QueryPrograms(link.QueryOptions{Target: int(own.Fd()), Attach: ebpf.AttachCGroupInet4Connect})
		g.must(err)
		if len(q.Programs) == programs {
			return
		}
		if time.Now().After(deadline) {
			g.Fatalf("%s has %d programs at connect4, want %d", dir, len(q.Programs), programs)
		}
	}
}

// during makes calls as long as f runs, and tells how many.
func (g *group) during(f func()) uint64 {
	g.Helper()
	made := uint64(0)
	meanwhile(f, func(over *atomic.Bool) {
		other := *g
		other.node = g.thread()
		for last := false; !last; made += 10 {
			last = over.Load()
			other.calls(g.dir, 10)
		}
	})
	return made
}

// hooks lists what rows show, as "hook of directory".
func hooks(rows []DeviceRow) []string {
	list := []string{}
	for _, r := range rows {
		list = append(list, r.Hook+" of "+r.Device)
	}
	return list
}

// all are the hooks of a cgroup, in the order of rows.
func all(dir string) []string {
	list := []string{}
	for name := range strings.FieldsSeq("connect4 connect6 getpeername4 getpeername6 recvmsg4 recvmsg6 sendmsg4 sendmsg6") {
		list = append(list, name+" of "+dir)
	}
	return list
}

// links are the numbers of links by hook.
func links(rows []DeviceRow) map[string]uint32 {
	numbers := map[string]uint32{}
	for _, r := range rows {
		numbers[r.Hook] = r.Link
	}
	return numbers
}

// confined runs f with no capabilities but these.
func (g *group) confined(f func(), capabilities ...uint) {
	g.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var before [2]unix.CapUserData
	g.must(unix.Capget(&header, &before[0]))
	fewer := before
	fewer[0].Effective, fewer[1].Effective = 0, 0
	for _, c := range capabilities {
		fewer[c/32].Effective |= 1 << (c % 32)
	}
	g.must(unix.Capset(&header, &fewer[0]))
	defer func() { g.must(unix.Capset(&header, &before[0])) }()
	f()
}
