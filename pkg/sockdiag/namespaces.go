// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// errHidden is one for all processes: they come and go, and an error that named them would be another one each time.
var errHidden = errors.New("the kernel hides the network namespaces of some processes, for want of CAP_SYS_PTRACE or by a security module")

// Everywhere calls a function in every network namespace that a process of /proc is in: one after the other, each time on a thread that is in it.
func Everywhere(call func() error) error {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	hidden := false
	var errs []error
	seen := map[uint64]bool{}
	for _, process := range processes {
		err := callIn(process, seen, call)
		if errors.Is(err, errHidden) {
			hidden = true
		} else if err != nil {
			errs = append(errs, fmt.Errorf("look into the network namespace of %s: %w", process, err))
		}
	}
	if hidden {
		errs = append(errs, errHidden)
	}
	return errors.Join(errs...)
}

// callIn calls in the namespace that a process is in, unless it is seen already. A namespace counts as seen once it is open:
// the process may have ended since it was listed, and another one be there still.
func callIn(process string, seen map[uint64]bool, call func() error) error {
	file, err := openNamespace(process)
	if file == nil {
		return err
	}
	defer file.Close()
	var namespace unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &namespace); err != nil {
		return err
	}
	if seen[namespace.Ino] {
		return nil
	}
	seen[namespace.Ino] = true
	return inside(netns.NsHandle(file.Fd()), call)
}

// inside calls a function on a thread of a network namespace.
func inside(where netns.NsHandle, call func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := netns.Set(where)
		if err == nil {
			err = call()
		}
		done <- err
	}()
	return <-done
}

// openNamespace gives nothing of a process that has ended.
func openNamespace(process string) (*os.File, error) {
	// A later process of the same number does not get the open directory.
	directory, err := unix.Open(process, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if ended(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(directory)
	fd, err := unix.Openat(directory, "ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		return os.NewFile(uintptr(fd), process+"/ns/net"), nil
	}
	// The kernel refuses the namespace of a process that ends just then in the same words as one that is hidden.
	if ended(err) || ended(unix.Faccessat(directory, "ns", unix.F_OK, 0)) {
		return nil, nil
	}
	if errors.Is(err, os.ErrPermission) {
		return nil, errHidden
	}
	return nil, err
}

// ended tells of an error that it is of a process that is no more.
func ended(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }
