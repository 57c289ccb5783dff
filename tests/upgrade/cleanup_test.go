// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
)

// A node on which agents of both layouts ran, one of which was killed in the middle of an upgrade, is after cleanup what it was
// before; another agent with a pin path of its own and programs of others stay as they are.
func TestCleanupLeavesTheNodeAsItWas(t *testing.T) {
	for name, flags := range methods() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, append(flags, "--pod-devices", "pod10,pod11")...)
			r.foreigners()
			r.neighbour(flags)
			before := r.snapshot()

			s := service(1)
			r.publish(s, r.near)
			ids := r.killMidway(other, ours)
			if after := r.snapshot(); slices.Equal(after, before) {
				t.Error("an agent changes nothing that this test sees")
			}
			for range 2 { // the second one finds nothing
				r.cleanup()
				if diff := cmp.Diff(before, r.snapshot().withSettingsOf(before)); diff != "" {
					t.Errorf("before the agents and after cleanup (-before +after):\n%s", diff)
				}
			}
			ids.awaitGone(t)
		})
	}
}

// killMidway has an agent of one layout followed by one of another, which is killed when it has put its tables in force and
// the other's are still there. It gives what is pinned then. An agent that has come to its end before it is killed was too fast
// for us: it is all done again, for as long as that takes within a time.
func (r *rig) killMidway(from, to layout) (pinned ids) {
	r.t.Helper()
	var left ids
	began := time.Now()
	for tries := 1; len(left.programs) < 10 || len(left.maps) < 10; tries++ {
		if time.Since(began) > 3*patience {
			r.t.Fatalf("%d programs and %d maps of the layout before are pinned, want all of it, after %d tries", len(left.programs), len(left.maps), tries)
		}
		r.become(from)
		r.must(r.agent.Kill())
		r.agent = r.start(r.here, to)
		err := lab.Await(patience, func() bool {
			midway := func(name string) bool { return strings.HasPrefix(name, "old_") }
			return slices.ContainsFunc(r.generations(), midway) || r.alone(to)
		})
		r.must(r.agent.Kill())
		if err != nil {
			r.t.Fatalf("upgrade begins: %v", err)
		}
		pinned, left = r.ids("*"), r.ids("old_*")
	}
	r.must(r.Mounted(func() error { // and one that was killed while it made its tables
		return os.MkdirAll(filepath.Join(r.here.PinPath(), "new_v8", "programs", "new_1"), 0o700)
	}))
	return pinned
}

// foreigners attaches programs of somebody else to the devices and the cgroup that the agent uses.
func (r *rig) foreigners() {
	r.t.Helper()
	load := func(spec ebpf.ProgramSpec) *ebpf.Program {
		spec.License = "GPL"
		p, err := ebpf.NewProgram(&spec)
		r.must(err)
		r.t.Cleanup(func() { p.Close() })
		return p
	}
	pass := load(ebpf.ProgramSpec{Name: "foreign_tc", Type: ebpf.SchedCLS, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	allow := load(ebpf.ProgramSpec{Name: "foreign_sock", Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	keep := func(l link.Link, err error) {
		if errors.Is(err, ebpf.ErrNotSupported) {
			return // before Linux 6.6
		}
		r.must(err)
		r.t.Cleanup(func() { l.Close() })
	}
	keep(link.AttachCgroup(link.CgroupOptions{Path: r.here.Cgroup(), Attach: ebpf.AttachCGroupInet4Connect, Program: allow}))
	r.must(r.here.Do(func() error {
		device, err := netlink.LinkByName(r.pod.Device)
		if err != nil {
			return err
		}
		index := device.Attrs().Index
		keep(link.AttachTCX(link.TCXOptions{Interface: index, Program: pass, Attach: ebpf.AttachTCXEgress}))
		qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
		filter := &netlink.BpfFilter{Fd: pass.FD(), Name: "foreign", DirectAction: true, FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 7, Priority: 7, Protocol: unix.ETH_P_ALL}}
		return errors.Join(netlink.QdiscAdd(qdisc), netlink.FilterAdd(filter))
	}))
}

// neighbour runs another agent on the node, for one pod of its own.
func (r *rig) neighbour(flags []string) {
	r.t.Helper()
	pod := r.addPod(r.here, "neighbour")
	pins, locks := filepath.Join(r.BPFDir(), "neighbour"), filepath.Join(r.Dir, "neighbour")
	p, err := r.here.StartAgent(lab.AgentOptions{Command: []string{"/proc/self/exe", "agent"}, Env: []string{runAsCLI + "=1"}, Args: append([]string{
		"--pin-path", pins, "--lock-dir", locks, "--pod-devices", pod.Device, "--net-devices", "none", "--socket-lb=off",
		"--health-address=", "--metrics-address="}, flags...)})
	r.must(err)
	err = lab.Await(patience, func() bool {
		status, err := agent.ReadStatus(locks, pins)
		return err == nil && status.PID == p.PID() && status.State == agent.Serving && len(status.Devices) == 2
	})
	if err != nil {
		r.t.Fatalf("another agent serves its pod: %v", err)
	}
}

func (r *rig) cleanup() {
	r.t.Helper()
	cmd := exec.Command("/proc/self/exe", "cleanup", "--pin-path", r.here.PinPath(), "--lock-dir", r.LockDir())
	cmd.Env = append(os.Environ(), runAsCLI+"=1")
	var out []byte
	err := r.Mounted(func() error {
		return r.here.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	})
	if err != nil {
		r.t.Fatalf("cleanup: %v: %s", err, out)
	}
}

// node is all that an agent could have changed on the node, in lines.
type node []string

// withSettingsOf leaves out settings that there were none of before: those of a part of the kernel that was loaded meanwhile, by
// whoever else works on this machine.
func (n node) withSettingsOf(before node) node {
	known := map[string]bool{}
	for _, line := range before {
		known[settingOf(line)] = true
	}
	return slices.DeleteFunc(slices.Clone(n), func(line string) bool { return !known[settingOf(line)] })
}

// settingOf is the name of the setting that a line is about; "" of other lines.
func settingOf(line string) string {
	words := strings.Fields(line)
	if words[0] != "setting" {
		return ""
	}
	return words[1]
}

func (r *rig) snapshot() node {
	r.t.Helper()
	var lines node
	note := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	err := r.Mounted(func() error {
		return errors.Join(
			files(r.BPFDir(), note), files(r.LockDir(), note),
			r.here.Do(func() error { return errors.Join(devices(note), settings(note)) }),
			attachments("cgroup", r.here.Cgroup(), note),
		)
	})
	r.must(err)
	return lines
}

type noter func(format string, args ...any)

func files(dir string, note noter) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			note("file %s %s", path, d.Type())
		}
		return err
	})
}

// devices lists what is on each device of the namespace.
func devices(note noter) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		a := l.Attrs()
		note("device %d %s %s mtu %d flags %v", a.Index, a.Name, l.Type(), a.MTU, a.Flags&^net.FlagRunning) // which the kernel sets some time later
		qdiscs, err := netlink.QdiscList(l)
		if err != nil {
			return err
		}
		for _, q := range qdiscs {
			note("  qdisc %s", q.Type())
		}
		for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
			filters, _ := netlink.FilterList(l, parent) // none without a qdisc
			for _, f := range filters {
				if b, ok := f.(*netlink.BpfFilter); ok {
					note("  filter %x %s program %d", parent, b.Name, b.Id)
				}
			}
		}
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			found, err := link.QueryPrograms(link.QueryOptions{Target: a.Index, Attach: at})
			if err != nil {
				continue // before Linux 6.6
			}
			for _, p := range found.Programs {
				note("  %v program %d", at, p.ID)
			}
		}
	}
	return nil
}

// settings are the namespace's own. What the kernel counts there, or can do, is none.
func settings(note noter) error {
	return filepath.WalkDir("/proc/sys/net", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(path, "count") || strings.Contains(path, "flush") || strings.Contains(path, "available") {
			return nil
		}
		if text, err := os.ReadFile(path); err == nil {
			note("setting %s %s", path, strings.TrimSpace(string(text)))
		}
		return nil
	})
}

// attachments are those of a cgroup that an agent may have.
func attachments(what, dir string, note noter) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, at := range []ebpf.AttachType{ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect, ebpf.AttachCGroupUDP4Sendmsg, ebpf.AttachCGroupUDP6Sendmsg,
		ebpf.AttachCGroupUDP4Recvmsg, ebpf.AttachCGroupUDP6Recvmsg, ebpf.AttachCgroupInet4GetPeername, ebpf.AttachCgroupInet6GetPeername} {
		found, err := link.QueryPrograms(link.QueryOptions{Target: int(file.Fd()), Attach: at})
		if err != nil {
			return err
		}
		for _, p := range found.Programs {
			note("%s %v program %d", what, at, p.ID)
		}
	}
	return nil
}

// ids are the kernel's numbers of what is pinned under a path.
type ids struct {
	programs map[ebpf.ProgramID]bool
	maps     map[ebpf.MapID]bool
}

// ids are those of generations, as a shell pattern.
func (r *rig) ids(generations string) ids {
	r.t.Helper()
	found := ids{map[ebpf.ProgramID]bool{}, map[ebpf.MapID]bool{}}
	r.must(r.Mounted(func() error {
		dirs, err := filepath.Glob(filepath.Join(r.here.PinPath(), generations))
		for _, dir := range dirs {
			err = errors.Join(err, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() && !strings.Contains(path, "/links/") {
					found.add(path)
				}
				return err
			}))
		}
		return err
	}))
	return found
}

func (f *ids) add(path string) {
	if p, err := ebpf.LoadPinnedProgram(path, nil); err == nil {
		defer p.Close()
		if info, err := p.Info(); err == nil {
			id, _ := info.ID()
			f.programs[id] = true
			tables, _ := info.MapIDs() // those of constants are pinned nowhere
			for _, id := range tables {
				f.maps[id] = true
			}
		}
		return
	}
	if m, err := ebpf.LoadPinnedMap(path, nil); err == nil {
		defer m.Close()
		if info, err := m.Info(); err == nil {
			id, _ := info.ID()
			f.maps[id] = true
		}
	}
}

// awaitGone waits until the kernel has none of them any more: it frees them some time after their last use. It asks for the
// next number, and opens none: that would be another use.
func (f *ids) awaitGone(t *testing.T) {
	t.Helper()
	programs, maps := 0, 0
	err := lab.Await(patience, func() bool {
		programs, maps = 0, 0
		for id := range f.programs {
			if next, err := ebpf.ProgramGetNextID(id - 1); err == nil && next == id {
				programs++
			}
		}
		for id := range f.maps {
			if next, err := ebpf.MapGetNextID(id - 1); err == nil && next == id {
				maps++
			}
		}
		return programs+maps == 0
	})
	if err != nil {
		t.Errorf("the kernel still has %d programs and %d maps: %v", programs, maps, err)
	}
}
