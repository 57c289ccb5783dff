// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/tests/privileged"
)

// The kernel tells nobody of a link that somebody detaches by its number, or gives another program.
func TestALinkThatSomebodyDetachesOrGivesAnotherProgramComesBack(t *testing.T) {
	if !privileged.TCX(t) {
		t.Skip("this kernel has no TCX")
	}
	inNode(t, func(n *node) {
		m, synced := n.follow(func(o *Options) {})
		pod := n.pod("pod1", 0)
		n.await(m, synced, n.podDoors("pod1")...)
		nothing := n.programThatDoesNothing()
		for what, harm := range map[string]func(link.Link) error{
			"the links were detached":       link.Link.Detach,
			"the links got another program": func(l link.Link) error { return l.Update(nothing) },
		} {
			for _, row := range n.rows() {
				l, err := link.NewFromID(link.ID(row.Link))
				n.must(err)
				n.must(harm(l))
				n.must(l.Close())
			}
			n.back(pod, synced, what, func() bool {
				rows := n.rows()
				return len(rows) == 2 && !slices.ContainsFunc(rows, func(r DeviceRow) bool { return !n.programIDs()[ebpf.ProgramID(r.ID)] })
			})
		}
	})
}

// So with the program at XDP.
func TestALinkAtXDPThatSomebodyDetachesComesBack(t *testing.T) {
	inNode(t, func(n *node) {
		n.card("eth0", "192.0.2.1/24")
		var told []bpf.XDPDevice
		program := n.passingXDP()
		m, synced := n.follow(func(o *Options) {
			asNode("192.0.2.1")(o)
			o.XDP = genericXDP(program, &told)
		})
		there := func() bool { return len(xdpRows(n.rows())) == 1 }
		n.until(synced, "the program is attached", there)
		l, err := link.NewFromID(link.ID(xdpRows(m.Devices())[0].Link))
		n.must(err)
		n.must(l.Detach())
		n.must(l.Close())
		n.until(synced, "it was detached, and came back", there)
	})
}

// Who writes a filter of the same place and handle takes ours away without a word of its end.
func TestAFilterThatSomebodyOverwritesComesBackByTheKernelsNews(t *testing.T) {
	inNode(t, func(n *node) {
		m, synced := n.follow(func(o *Options) { o.Force = Clsact })
		pod := n.pod("pod1", 0)
		n.await(m, synced, "pod1 from_pod clsact", "pod1 to_pod clsact")
		h, err := openNetlink()
		n.must(err)
		defer h.Close()
		index := n.link("pod1").Attrs().Index
		for _, hook := range places() {
			hook.loaded = n.programThatDoesNothing()
			n.must(h.FilterReplace(hook.filter(index)))
		}
		n.back(pod, synced, "the filters were overwritten", func() bool {
			for _, hook := range places() {
				filter, err := findFilter(h, index, hook)
				if err != nil || filter == nil || !n.programIDs()[ebpf.ProgramID(filter.Id)] {
					return false
				}
			}
			return true
		})
	})
}

// What the Manager itself writes is no news, or each new device would be looked at twice.
func TestFiltersThatTheManagerWritesAreNoNews(t *testing.T) {
	inNode(t, func(n *node) {
		n.pod("pod1", 0)
		m := n.manager(func(o *Options) { o.Force = Clsact })
		news, err := listen()
		n.must(err)
		defer news.close()
		n.must(m.Sync())
		for written := 0; written < 2; {
			messages, _, err := news.socket.Receive()
			n.must(err)
			for _, message := range messages {
				f, ours := writtenFilter(message.Data)
				if message.Header.Type != unix.RTM_NEWTFILTER || !ours {
					continue
				}
				written++
				m.filterChanged(f)
				if m.removed.devices != nil {
					t.Fatalf("news of program %d", f.runs)
				}
			}
		}
	})
}

// back waits for a look of the manager's after which what somebody took away is there again, and the programs see packets.
func (n *node) back(pod *os.File, synced <-chan struct{}, what string, there func() bool) {
	n.Helper()
	n.until(synced, what+", and came back", there)
	before := n.counted()
	if sent := n.sendFrom(pod, 5); sent == 0 || n.settled(before+sent) != before+sent {
		n.Errorf("%s: the programs do not see packets", what)
	}
}

// until waits for a look of the manager's after which the kernel has what is wanted: the manager's rows may stay as they are.
func (n *node) until(synced <-chan struct{}, what string, there func() bool) {
	n.Helper()
	limit := time.After(recheck / 5)
	for !there() {
		select {
		case <-synced:
		case <-limit:
			n.Fatalf("in vain waited until %s", what)
		}
	}
}

func (n *node) programThatDoesNothing() *ebpf.Program {
	n.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, tcxNext), asm.Return()},
	})
	n.must(err)
	n.Cleanup(func() { p.Close() })
	return p
}
