// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/tests/privileged"
)

// A process that lacks descriptors learns nothing of the tables: they stay in force, alone, and what is read of another layout's is
// not given up either. Load counts descriptors beforehand, but others may open some meanwhile.
func TestAStartWithoutDescriptorsLeavesTheTablesInForce(t *testing.T) {
	path := pinned(t)
	for _, layout := range []string{layoutVersion, "v8"} {
		if err := os.Rename(filepath.Join(path, layoutVersion), filepath.Join(path, layout)); err != nil && layout != layoutVersion {
			t.Fatal(err)
		}
		for failed := uint64(0); ; failed++ {
			fresh, former, err := openWithin(t, failed, path)
			if err == nil {
				if failed < 10 {
					t.Errorf("%s: only %d starts lacked descriptors", layout, failed)
				}
				if fresh != (layout != layoutVersion) || former {
					t.Errorf("%s: new tables %v, tables that cannot be read %v", layout, fresh, former)
				}
				break
			}
			if !errors.Is(err, unix.EMFILE) {
				t.Fatalf("%s, %d descriptors: %v, want %v", layout, failed, err, unix.EMFILE)
			}
		}
	}
}

// The same of memory, whatever it is that the kernel has none for: a table, what it says of it, or its types.
func TestAStartWithoutMemoryLeavesTheTablesInForce(t *testing.T) {
	path := pinned(t)
	for _, layout := range []string{layoutVersion, "v8"} {
		if err := os.Rename(filepath.Join(path, layoutVersion), filepath.Join(path, layout)); err != nil && layout != layoutVersion {
			t.Fatal(err)
		}
		for what, command := range map[string]uint32{"open a table": unix.BPF_OBJ_GET, "tell of it": unix.BPF_OBJ_GET_INFO_BY_FD} {
			spec := specOfPinned(t)
			var fresh bool
			err := refused(t, command, unix.ENOMEM, func() (err error) {
				fresh, _, err = openOver(spec, path)
				return err
			})
			if !errors.Is(err, unix.ENOMEM) || fresh && layout == layoutVersion {
				t.Errorf("%s, the kernel has no memory to %s: new tables %v, %v, want %v", layout, what, fresh, err, unix.ENOMEM)
			}
		}
		if fresh, unread, err := openOver(specOfPinned(t), path); err != nil || fresh != (layout != layoutVersion) || unread {
			t.Errorf("%s, with memory again: new tables %v, tables that cannot be read %v, %v", layout, fresh, unread, err)
		}
	}
}

// refused calls f on a thread of its own, to which the kernel refuses one of bpf's commands with an error: a limit of a cgroup would have
// the kernel end the process.
func refused(t *testing.T, command uint32, with unix.Errno, f func() error) error {
	t.Helper()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(unsafe.Offsetof(seccompData{}.number))},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_BPF, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(unsafe.Offsetof(seccompData{}.arguments))},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: command, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(with)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its filter
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
			done <- fmt.Errorf("refuse a command: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// seccompData is what a filter reads (struct seccomp_data); the low half of an argument comes first.
type seccompData struct {
	number    uint32
	_         uint32 // the architecture
	_         uint64 // the instruction's address
	arguments [6]uint64
}

var pinSizes = Sizes{Frontends: 64, Records: 64, Slots: 4096, Backends: 64, FlowSets: 16, Affinity: 64, Fragments: 64, SourceRanges: 64, Services: 64, Names: 64}

// pinned is a directory with the tables of a start that is over.
func pinned(t *testing.T) (path string) {
	t.Helper()
	path = privileged.Bpffs(t)
	first, err := MakeTables(Options{Sizes: pinSizes, PinPath: path})
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	return path
}

// openWithin opens what is pinned while the process may open only so many descriptors more.
func openWithin(t *testing.T, descriptors uint64, path string) (fresh, unread bool, err error) {
	t.Helper()
	spec := specOfPinned(t)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	next, err := os.Open(os.DevNull) // the lowest number that is free
	if err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: uint64(next.Fd()) + descriptors, Max: before.Max}
	next.Close()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	fresh, unread, err = openOver(spec, path)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	return fresh, unread, err
}

func specOfPinned(t *testing.T) *ebpf.CollectionSpec {
	t.Helper()
	spec, err := configured(Options{Sizes: pinSizes})
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// openOver opens what is pinned. fresh: it takes another layout's place; unread: some table of that one cannot be carried over.
func openOver(spec *ebpf.CollectionSpec, path string) (fresh, unread bool, err error) {
	o := &Objects{pinPath: path}
	found, err := o.open(spec)
	for _, f := range o.former {
		for _, table := range f.tables {
			unread = unread || table.unreadable != nil
		}
	}
	closeAll(found)
	o.closeFormer()
	return o.unfinished, unread, err
}
