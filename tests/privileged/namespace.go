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
		// It is never unlocked: the thread ends with the goroutine, and the namespace with it. The process's first thread
		// would not end: while it is taken, the next one is another.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			Namespace(t, run)
			return
		}
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
