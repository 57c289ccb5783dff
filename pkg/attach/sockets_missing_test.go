// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/cgroup"
	"github.com/nearlb/nearlb/tests/privileged"
)

func TestADirectoryThatIsNoCgroupIsNamedInEveryRow(t *testing.T) {
	inGroup(t, func(g *group) {
		for _, dir := range []string{t.TempDir(), filepath.Join(g.dir, "missing")} {
			s := g.sockets(func(o *SocketOptions) { o.Cgroup = dir })
			if err := s.Sync(); err == nil {
				t.Errorf("%s: no error", dir)
			}
			refused(t, s.Rows(), dir)
			if rows := g.rows(); len(rows) != 0 {
				t.Errorf("the kernel has %v", rows)
			}
		}
	})
}

// refused checks that every hook has a row with an error that says something.
func refused(t *testing.T, rows []DeviceRow, says string) {
	t.Helper()
	if len(rows) != len(socketHooks()) {
		t.Errorf("the rows are %v, want one for each hook", rows)
	}
	for _, row := range rows {
		if row.Method != "" || row.Link != 0 || !strings.Contains(row.Error, says) {
			t.Errorf("the row is %+v, want an error that says %s", row, says)
		}
	}
}

// withoutCgroups in the environment says that the process has mounts of its own.
const withoutCgroups = "NEARLB_TEST_WITHOUT_CGROUPS"

// The mounts of /proc/self are those of a process's first thread, so that it takes another process to be without any.
func TestWithoutACgroup2MountEveryRowSaysHowToMendIt(t *testing.T) {
	privileged.Require(t)
	if os.Getenv(withoutCgroups) != "" {
		unmountCgroups(t)
		inNode(t, func(n *node) {
			g := &group{node: n, programs: socketPrograms(n)}
			s := g.sockets(nil)
			if err := s.Sync(); !errors.Is(err, cgroup.ErrNoMount) {
				t.Errorf("error %v, want %v", err, cgroup.ErrNoMount)
			}
			refused(t, s.Rows(), "mount -t cgroup2")
		})
		return
	}
	child := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), withoutCgroups+"=1")
	child.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	if said, err := child.CombinedOutput(); err != nil || !strings.Contains(string(said), "--- PASS: "+t.Name()) {
		t.Errorf("without cgroups: %v\n%s", err, said)
	}
}

func unmountCgroups(t *testing.T) {
	t.Helper()
	for {
		mount, err := cgroup.Find()
		if errors.Is(err, cgroup.ErrNoMount) {
			return
		}
		if err == nil {
			err = unix.Unmount(mount.Point, unix.MNT_DETACH)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestACgroupThatComesLaterIsServedByARunningManager(t *testing.T) {
	inGroup(t, func(g *group) {
		dir := filepath.Join(g.dir, "later")
		synced := make(chan struct{}, 100)
		s := g.sockets(func(o *SocketOptions) { o.Cgroup, o.Synced = dir, func() { synced <- struct{}{} } })
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		<-synced
		refused(t, s.Rows(), dir)
		g.must(os.Mkdir(dir, 0o755))
		g.Cleanup(func() { os.Remove(dir) })
		for limit := time.After(time.Minute); s.Rows()[0].Error != ""; {
			select {
			case <-synced:
			case <-limit:
				t.Fatalf("the rows are %v", s.Rows())
			}
		}
		cancel()
		g.must(<-ended)
		if got := len(g.rows()); got != len(socketHooks()) {
			t.Errorf("%d programs are attached", got)
		}
	})
}
