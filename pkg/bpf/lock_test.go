// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// docs/install.md's cleanup runs in a pod of `kubectl debug`, which has the node's root at /host: it is to find the agent's own lock and status.
func TestWhoHasTheNodesRootElsewhereTakesTheSameLock(t *testing.T) {
	own := LockName(DefaultLockDir, "/sys/fs/bpf/nearlb")
	if got := LockName("/host/run/nearlb", "/host/sys/fs/bpf/nearlb"); got != own {
		t.Errorf("below /host it is %s, for the agent %s", got, own)
	}
	for _, other := range [][2]string{
		{"/host/run/nearlb", "/host/sys/fs/bpf/other"},
		{"/host/run/other", "/host/sys/fs/bpf/nearlb"}, // not a node's root
		{"/run/nearlb", "/host/sys/fs/bpf/nearlb"},
	} {
		if LockName(other[0], other[1]) == own {
			t.Errorf("%v is the same lock", other)
		}
	}
	node, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "host")
	if err := os.Symlink(node, elsewhere); err != nil {
		t.Fatal(err)
	}
	held, err := Lock(node+DefaultLockDir, node+"/sys/fs/bpf/nearlb")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, err := Lock(elsewhere+DefaultLockDir, elsewhere+"/sys/fs/bpf/nearlb"); !errors.Is(err, ErrLocked) {
		t.Errorf("beside the one that has it: %v", err)
	}
}
