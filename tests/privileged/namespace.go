// SPDX-License-Identifier: Apache-2.0

package privileged

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Namespace runs a part of the test on a thread of its own in a fresh network namespace, and waits for it. own is open on
// that namespace as long as run lasts.
func Namespace(t testing.TB, run func(own *os.File)) {
	t.Helper()
	Require(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, and the namespace with it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("make network namespace: %v", err)
			return
		}
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			t.Error(err)
			return
		}
		defer own.Close()
		run(own)
	}()
	<-done
}
