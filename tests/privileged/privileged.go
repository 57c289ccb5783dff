// SPDX-License-Identifier: Apache-2.0

// Package privileged guards tests that need the kernel's BPF: they run, fail, or say that they were left out.
package privileged

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Variable makes a missing privilege a failure. `make test` and CI set it to 1.
const Variable = "NEARLB_REQUIRE_PRIVILEGED"

// Require lets the test run only where BPF is permitted. Elsewhere it fails if the environment says that privileged tests
// must run, and skips with the reason if not.
func Require(t testing.TB) {
	t.Helper()
	err := missing()
	if err == nil {
		return
	}
	if os.Getenv(Variable) == "1" {
		t.Fatalf("privileged test cannot run, and %s=1 asks for it: %v", Variable, err)
	}
	t.Skipf("left out without privilege (%s=1 makes this a failure): %v", Variable, err)
}

// Here tells whether BPF is permitted: for tests that do more where it is.
func Here() bool { return missing() == nil }

// missing asks the kernel by trying.
func missing() error {
	if os.Geteuid() != 0 {
		return errors.New("not root")
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return err
	}
	return m.Close()
}

// Bpffs mounts a bpffs of the test's own in a temporary directory and gives a path in it that does not exist yet. It is
// unmounted when the test ends, which frees everything pinned there.
func Bpffs(t testing.TB) string {
	t.Helper()
	Require(t)
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatalf("mount bpffs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount bpffs: %v", err)
		}
	})
	return filepath.Join(dir, "nearlb")
}
