// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/tests/privileged"
)

func TestEveryHookOfSocketsIsAttachedToTheCgroupAndListed(t *testing.T) {
	inGroup(t, func(g *group) {
		s := g.sockets(nil)
		g.must(s.Sync())
		rows := g.rows()
		if diff := cmp.Diff(all(g.dir), hooks(rows)); diff != "" {
			t.Errorf("the kernel has other programs than wanted (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(rows, s.Rows()); diff != "" {
			t.Errorf("Rows say otherwise than the kernel (-kernel +rows):\n%s", diff)
		}
		for _, row := range rows {
			if row.Kind != "cgroup" || row.Method != CgroupLink || row.Link == 0 || row.Tag == "" || row.Program != "sock_"+row.Hook ||
				row.ID != id(g.node, g.programs[row.Program]) {
				t.Errorf("the row is %+v", row)
			}
		}
		g.calls(g.dir, 5)
		if got := g.counted(); got != 5 {
			t.Errorf("%d calls of 5 were seen", got)
		}
	})
}

func TestARestartPutsNewProgramsUnderTheLinksOfSocketsWithoutAGap(t *testing.T) {
	inGroup(t, func(g *group) {
		first := g.sockets(nil)
		g.must(first.Sync())
		before := g.rows()
		g.must(first.Close())
		g.calls(g.dir, 20) // nobody is there
		if got := g.counted(); got != 20 {
			t.Fatalf("%d calls of 20 were seen after the manager ended", got)
		}
		g.programs = socketPrograms(g.node)
		second := g.sockets(nil)
		made := g.during(func() { g.must(second.Sync()) })
		if got := g.counted(); got != 20+made {
			t.Errorf("%d of %d calls were seen while programs were replaced", got-20, made)
		}
		after := g.rows()
		if diff := cmp.Diff(links(before), links(after)); diff != "" || len(after) != len(before) {
			t.Errorf("want the same links (-before +after):\n%s", diff)
		}
		for _, row := range after {
			if row.ID != id(g.node, g.programs[row.Program]) {
				t.Errorf("%s has program %d, which is not the new one", row.Hook, row.ID)
			}
		}
		g.must(second.Sync())
		if diff := cmp.Diff(after, g.rows()); diff != "" {
			t.Errorf("a Sync with nothing to do changed (-before +after):\n%s", diff)
		}
	})
}

func TestSocketModeOffTakesAwayWhatAnEarlierManagerPinned(t *testing.T) {
	inGroup(t, func(g *group) {
		first := g.sockets(nil)
		g.must(first.Sync())
		g.must(first.Close())
		off := g.sockets(func(o *SocketOptions) { o.Mode, o.Programs = NoSockets, nil })
		g.must(off.Sync())
		g.must(off.Sync())
		if rows, pinned := g.rows(), g.pinned(); len(rows)+len(pinned)+len(off.Rows()) != 0 {
			t.Errorf("the kernel has %v, pinned are %v, and the rows are %v", rows, pinned, off.Rows())
		}
		g.settle(g.dir, 0)
		g.calls(g.dir, 5)
		if got := g.counted(); got != 0 {
			t.Errorf("%d calls were seen", got)
		}
	})
}

func TestAnotherCgroupGetsTheProgramsOfSocketsAndTheOldOneLosesThem(t *testing.T) {
	inGroup(t, func(g *group) {
		other := privileged.Cgroup(t)
		for dir, left := range map[string]string{g.dir: other, other: g.dir} {
			s := g.sockets(func(o *SocketOptions) { o.Cgroup = dir })
			g.must(s.Sync())
			g.must(s.Close())
			if diff := cmp.Diff(all(dir), hooks(g.rows())); diff != "" {
				t.Error(diff)
			}
			g.settle(left, 0)
			before := g.counted()
			g.calls(g.dir, 3)
			g.calls(other, 3)
			if got := g.counted() - before; got != 3 {
				t.Errorf("%d calls were seen, want the 3 of one cgroup", got)
			}
		}
	})
}

func TestACgroupOfTheSameNameIsNotTakenForTheOneThatWasRemoved(t *testing.T) {
	inGroup(t, func(g *group) {
		s := g.sockets(nil)
		g.must(s.Sync())
		old := links(g.rows())
		g.must(os.Remove(g.dir))
		if rows := g.rows(); len(rows) != 0 {
			t.Errorf("links of a cgroup that is gone are listed: %v", rows)
		}
		if err := s.Sync(); err == nil || !strings.Contains(err.Error(), g.dir) {
			t.Errorf("without the cgroup: %v, want an error that names it", err)
		}
		g.must(os.Mkdir(g.dir, 0o755))
		g.must(os.WriteFile(filepath.Join(g.dir, "cgroup.type"), []byte("threaded"), 0))
		g.must(s.Sync())
		if diff := cmp.Diff(all(g.dir), hooks(g.rows())); diff != "" {
			t.Error(diff)
		}
		if cmp.Equal(old, links(g.rows())) {
			t.Error("the links are those of the old cgroup")
		}
		g.calls(g.dir, 3)
		if got := g.counted(); got != 3 {
			t.Errorf("%d calls of 3 were seen", got)
		}
	})
}

func TestALinkOfSocketsThatLostItsFileIsPinnedAgain(t *testing.T) {
	inGroup(t, func(g *group) {
		s := g.sockets(nil)
		g.must(s.Sync())
		before, pinned := g.rows(), g.pinned()
		for _, name := range pinned {
			g.must(unix.Unlink(filepath.Join(g.linkDir, name)))
		}
		g.must(s.Sync())
		g.must(s.Close())
		if diff := cmp.Diff(before, g.rows()); diff != "" {
			t.Errorf("want the same links again (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(pinned, g.pinned()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestALinkOfSocketsThatSomebodyDetachedIsMadeAgain(t *testing.T) {
	inGroup(t, func(g *group) {
		synced := make(chan struct{}, 100)
		s := g.sockets(func(o *SocketOptions) { o.Synced = func() { synced <- struct{}{} } })
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		<-synced
		l, err := link.LoadPinnedLink(filepath.Join(g.linkDir, "cgroup_connect4"), nil)
		g.must(err)
		g.must(errors.Join(l.Detach(), l.Close()))
		if got := len(g.rows()); got != 7 {
			t.Errorf("%d programs are listed, want 7", got)
		}
		<-synced
		cancel()
		g.must(<-ended)
		if diff := cmp.Diff(all(g.dir), hooks(g.rows())); diff != "" {
			t.Error(diff)
		}
		g.calls(g.dir, 3)
		if got := g.counted(); got != 3 {
			t.Errorf("%d calls of 3 were seen", got)
		}
	})
}

func TestCleanupTakesTheLinksOfSocketsAndNothingOfOthers(t *testing.T) {
	inGroup(t, func(g *group) {
		s := g.sockets(nil)
		g.must(s.Sync())
		g.must(s.Close())
		others := socketPrograms(g.node)
		theirs, err := link.AttachCgroup(link.CgroupOptions{Path: g.dir, Attach: ebpf.AttachCGroupInet4Connect, Program: others["sock_connect4"]})
		g.must(err)
		defer theirs.Close()
		pinPath := filepath.Dir(filepath.Dir(g.linkDir))
		beside := filepath.Join(pinPath, "theirs")
		g.must(theirs.Pin(beside))
		removed, err := bpf.Cleanup(pinPath)
		g.must(err)
		for _, h := range socketHooks() {
			if !slices.Contains(removed, h.pin(g.linkDir)) {
				t.Errorf("%s is not among what was removed: %v", h.pin(g.linkDir), removed)
			}
		}
		if rows := g.rows(); len(rows) != 0 {
			t.Errorf("the kernel has %v", rows)
		}
		if _, err := os.Lstat(beside); err != nil {
			t.Errorf("somebody else's pin: %v", err)
		}
		g.settle(g.dir, 1)
		g.calls(g.dir, 3)
		if got := g.counted(); got != 3 {
			t.Errorf("%d calls were seen, want the 3 of somebody else's program", got)
		}
	})
}

func TestUnpinnedLinksOfSocketsGoWithTheirManager(t *testing.T) {
	inGroup(t, func(g *group) {
		s := g.sockets(func(o *SocketOptions) { o.LinkDir = "" })
		g.must(s.Sync())
		g.must(s.Sync())
		g.calls(g.dir, 3)
		g.must(s.Close())
		g.calls(g.dir, 3)
		if got := g.counted(); got != 3 {
			t.Errorf("%d calls were seen, want the 3 before Close", got)
		}
	})
}

func TestWhoTranslatesRequestsIsNotAttachedWithoutWhoTranslatesAnswers(t *testing.T) {
	inGroup(t, func(g *group) {
		programs := maps.Clone(g.programs)
		programs["sock_recvmsg4"] = programs["sock_connect4"] // the kernel refuses it at that hook
		s := g.sockets(func(o *SocketOptions) { o.Programs = programs })
		if err := s.Sync(); err == nil || !strings.Contains(err.Error(), "sock_recvmsg4") || !strings.Contains(err.Error(), g.dir) {
			t.Errorf("error %v, want the program and the cgroup named", err)
		}
		if diff := cmp.Diff([]string{"getpeername4 of " + g.dir, "getpeername6 of " + g.dir}, hooks(g.rows())); diff != "" {
			t.Error(diff)
		}
		for _, row := range s.Rows() {
			if attached := strings.HasPrefix(row.Hook, "getpeername"); attached != (row.Error == "") || attached != (row.Method == CgroupLink) {
				t.Errorf("the row is %+v", row)
			}
		}
		if diff := cmp.Diff(all(g.dir), hooks(s.Rows())); diff != "" {
			t.Error(diff)
		}
	})
}

// What `nearlb check` asks for. A lost pin takes CAP_SYS_ADMIN as well.
func TestThreeCapabilitiesAreEnoughToServeSocketsAndToTakeThemOver(t *testing.T) {
	inGroup(t, func(g *group) {
		g.confined(func() {
			first := g.sockets(nil)
			g.must(first.Sync())
			g.must(first.Close())
			g.must(g.sockets(nil).Sync())
		}, unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON)
		if diff := cmp.Diff(all(g.dir), hooks(g.rows())); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSocketOptionsThatCannotWorkAreRefused(t *testing.T) {
	for want, o := range map[string]SocketOptions{
		`"pods": want host, all or off`: {Mode: "pods"},
		"getpeername4 is not given":     {Mode: HostSockets, Programs: map[string]*ebpf.Program{}},
	} {
		if _, err := NewSocketHooks(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %s", err, want)
		}
	}
}
