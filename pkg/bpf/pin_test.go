// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/tests/privileged"
)

// A process that lacks descriptors learns nothing of the tables: they stay in force, alone, and what is read of another layout's is
// not given up either. Load counts descriptors beforehand, but others may open some meanwhile.
func TestAStartWithoutDescriptorsLeavesTheTablesInForce(t *testing.T) {
	path := privileged.Bpffs(t)
	sizes := Sizes{Frontends: 64, Records: 64, Slots: 4096, Backends: 64, FlowSets: 16, Affinity: 64, Fragments: 64, SourceRanges: 64, Services: 64, Names: 64}
	first, err := Load(Options{Sizes: sizes, PinPath: path})
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	for _, layout := range []string{layoutVersion, "v7"} {
		if err := os.Rename(filepath.Join(path, layoutVersion), filepath.Join(path, layout)); err != nil && layout != layoutVersion {
			t.Fatal(err)
		}
		for failed := uint64(0); ; failed++ {
			fresh, former, err := openWithin(t, failed, path, sizes)
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

// openWithin opens what is pinned while the process may open only so many descriptors more. fresh: it takes another layout's place;
// unread: some table of that one cannot be carried over.
func openWithin(t *testing.T, descriptors uint64, path string, sizes Sizes) (fresh, unread bool, err error) {
	t.Helper()
	spec, err := configured(Options{Sizes: sizes})
	if err != nil {
		t.Fatal(err)
	}
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
	o := &Objects{pinPath: path}
	found, err := o.open(spec)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	for _, f := range o.former {
		for _, table := range f.tables {
			unread = unread || table.unreadable != nil
		}
	}
	closeAll(found)
	o.closeFormer()
	return o.unfinished, unread, err
}
