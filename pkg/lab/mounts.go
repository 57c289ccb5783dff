// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// mounts is a mount namespace with a BPF file system in it. It lives as long as its file descriptor.
type mounts struct{ file *os.File }

// newMounts makes a copy of the machine's mounts, keeps later ones apart and mounts a BPF file system on dir.
func newMounts(dir string) (*mounts, error) {
	var m mounts
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("make mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("keep mounts private: %w", err)
		}
		if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
			return fmt.Errorf("mount BPF file system on %s: %w", dir, err)
		}
		file, err := os.Open("/proc/thread-self/ns/mnt")
		m.file = file
		return err
	})
	if err != nil {
		return nil, err
	}
	return &m, nil
}

// enter moves the calling thread into the namespace. The thread must be locked and must not be used for anything else
// afterwards: its root and working directory are its own from here on.
func (m *mounts) enter() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare working directory: %w", err)
	}
	if err := unix.Setns(int(m.file.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter mount namespace: %w", err)
	}
	return nil
}

func (m *mounts) do(f func() error) error {
	return onThread(func() error {
		if err := m.enter(); err != nil {
			return err
		}
		return f()
	})
}

func (m *mounts) close() error {
	if m == nil {
		return nil
	}
	return m.file.Close()
}

// onThread calls f on a thread that ends with it, so that f may change anything about the thread. The process's first thread
// is left as it is: it would not end, and what /proc/self tells of the process is what is true of that thread.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if onFirstThread() {
			defer runtime.UnlockOSThread()
			done <- onThread(f) // which gets another one, as this one is taken
			return
		}
		done <- f()
	}()
	err, returned := <-done
	if !returned {
		runtime.Goexit() // as f did: a test that failed
	}
	return err
}

func onFirstThread() bool { return unix.Gettid() == unix.Getpid() }

// MountMemory mounts a file system in memory on a directory, for the lab's processes: others see the directory below it.
func (l *Lab) MountMemory(dir string) error {
	return l.Mounted(func() error {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
			return fmt.Errorf("mount memory on %s: %w", dir, err)
		}
		return nil
	})
}

// MountPath names the lab's mount namespace for other processes (nsenter --mount=PATH) as long as this one lives.
func (l *Lab) MountPath() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), l.mounts.file.Fd())
}
