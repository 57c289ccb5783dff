// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/cgroup"
)

// cgroups are where a lab makes one for each node: the sockets of a node and of its pods belong to the node's cgroup, so that
// its agent can serve the node's own clients and nobody else's. They are threaded cgroups below the process's own one: the
// threads that open a node's sockets move, the process stays where it is.
type cgroups struct {
	own    string // directory of the process's cgroup; "": this machine lets us make none
	prefix string // of the names of the lab's cgroups
}

func newCgroups(labDir string) (cgroups, error) {
	own, err := cgroup.Own()
	if errors.Is(err, cgroup.ErrNoMount) {
		return cgroups{}, nil
	}
	return cgroups{own: own, prefix: filepath.Base(labDir) + "."}, err
}

// membership is what a thread that enters a namespace joins, and what it goes back to. The zero value is none.
type membership struct{ dir, own string }

// make makes the cgroup of a node; none where this machine lets us make none.
func (c cgroups) make(node string) (membership, error) {
	if c.own == "" {
		return membership{}, nil
	}
	m := membership{dir: filepath.Join(c.own, c.prefix+node), own: c.own}
	err := os.Mkdir(m.dir, 0o755)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return membership{}, nil
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(m.dir, "cgroup.type"), []byte("threaded"), 0)
	}
	if err != nil {
		return membership{}, errors.Join(fmt.Errorf("make cgroup of %s: %w", node, err), m.remove())
	}
	return m, nil
}

// remove waits for threads that are ending, such as the one that started a process.
func (m membership) remove() error {
	if m.dir == "" {
		return nil
	}
	var err error
	_ = Await(Patience, func() bool {
		err = os.Remove(m.dir)
		return !errors.Is(err, unix.EBUSY)
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

func (m membership) enter() error { return joinCgroup(m.dir) }
func (m membership) leave() error { return joinCgroup(m.own) }

// joinCgroup moves the calling thread, which must be locked. Sockets that it opens from here on belong to the cgroup, and so
// do processes that it starts.
func joinCgroup(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.threads"), []byte("0"), 0); err != nil {
		return fmt.Errorf("join cgroup: %w", err)
	}
	return nil
}

// removeStaleCgroups removes those of labs whose directory below parent is gone.
func removeStaleCgroups(parent string) {
	own, err := cgroup.Own()
	if err != nil {
		return
	}
	found, _ := filepath.Glob(filepath.Join(own, dirPattern+"*"))
	for _, dir := range found {
		base, _, _ := strings.Cut(filepath.Base(dir), ".")
		if _, err := os.Lstat(filepath.Join(parent, base)); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(dir)
		}
	}
}

// Cgroup is the directory of the node's cgroup: its agent's --cgroup. "" where this machine lets us make none.
func (n *Node) Cgroup() string { return n.cgroup.dir }
