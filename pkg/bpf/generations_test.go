// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/tests/privileged"
)

// generations are the directories under the pin path, without the time when they were left.
func generations(t *testing.T, path string) []string {
	t.Helper()
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "made_") {
			continue
		}
		names = append(names, regexp.MustCompile(`^old_[0-9]+_`).ReplaceAllString(e.Name(), "old_"))
	}
	slices.Sort(names)
	return names
}

func wantGenerations(t *testing.T, path string, want ...string) {
	t.Helper()
	if got := generations(t, path); !slices.Equal(got, want) {
		t.Errorf("generations %v, want %v", got, want)
	}
}

// pretend gives the tables in force another layout's name.
func pretend(t *testing.T, path, from, to string) {
	t.Helper()
	if err := os.Rename(filepath.Join(path, from), filepath.Join(path, to)); err != nil {
		t.Fatal(err)
	}
}

func TestTablesOfAnotherLayoutServeUntilTheyAreTakenOver(t *testing.T) {
	path := privileged.Bpffs(t)
	sizes := small()
	sizes.Backends = 128
	load(t, bpf.Options{Sizes: sizes, PinPath: path}).Close()
	pretend(t, path, "v6", "v8")
	if _, err := bpf.OpenMaps(path, true); !errors.Is(err, bpf.ErrIncompatible) || !strings.Contains(err.Error(), "of layout v8, this nearlb has v6") {
		t.Errorf("a read command says %v", err)
	}

	killed := load(t, bpf.Options{Sizes: small(), PinPath: path})
	wantGenerations(t, path, "new_v6", "v8")
	killed.Close()
	objects := load(t, bpf.Options{Sizes: small(), PinPath: path})
	wantGenerations(t, path, "new_v6", "v8")
	if !objects.Fresh() || len(objects.Former()) != 1 || objects.Former()[0].Layout() != "v8" {
		t.Errorf("fresh %v beside %v, want new tables beside those of v8", objects.Fresh(), objects.Former())
	}
	if objects.Sizes().Backends != 128 {
		t.Errorf("room for %d backends, want that of the other layout", objects.Sizes().Backends)
	}
	if err := objects.TakeOver(); err != nil {
		t.Fatal(err)
	}
	wantGenerations(t, path, "old_v8", "v6")
	objects.Close()
	again := load(t, bpf.Options{Sizes: small(), PinPath: path})
	if again.Fresh() || len(again.Former()) != 1 {
		t.Errorf("fresh %v beside %d others, want the start to go on with the upgrade", again.Fresh(), len(again.Former()))
	}
	if err := again.RemoveFormer(); err != nil {
		t.Fatal(err)
	}
	wantGenerations(t, path, "v6")
}

func TestAStartThatWasKilledBetweenTwoRenamesIsUndone(t *testing.T) {
	path := privileged.Bpffs(t)
	load(t, bpf.Options{Sizes: small(), PinPath: path}).Close()
	pretend(t, path, "v6", "v8")
	load(t, bpf.Options{Sizes: small(), PinPath: path}).Close()
	pretend(t, path, "v8", "old_1_v8")
	wantGenerations(t, path, "new_v6", "old_v8")
	objects := load(t, bpf.Options{Sizes: small(), PinPath: path})
	if !objects.Fresh() || len(objects.Former()) != 1 {
		t.Errorf("fresh %v beside %d others, want new tables beside one", objects.Fresh(), len(objects.Former()))
	}
	wantGenerations(t, path, "new_v6", "v8")
}

func TestTablesThatDoNotFitTheirNameAreReplacedAndNotRefused(t *testing.T) {
	path := privileged.Bpffs(t)
	load(t, bpf.Options{Sizes: small(), PinPath: path}).Close()
	odd, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer odd.Close()
	pin := filepath.Join(path, "v6", "maps", "names")
	if err := errors.Join(os.Remove(pin), odd.Pin(pin)); err != nil {
		t.Fatal(err)
	}
	objects := load(t, bpf.Options{Sizes: small(), PinPath: path})
	if !objects.Fresh() || objects.Former()[0].Needs("names", "text") == nil || objects.Former()[0].Needs("backends", "address") != nil {
		t.Errorf("fresh %v, names %v, backends %v", objects.Fresh(), objects.Former()[0].Needs("names"), objects.Former()[0].Needs("backends"))
	}
	if err := objects.TakeOver(); err != nil {
		t.Fatal(err)
	}
	wantGenerations(t, path, "old_v6", "v6")
}

// leaving is a load beside tables that are being left, with the directory of these.
func leaving(t *testing.T) (path string, objects *bpf.Objects, left string) {
	t.Helper()
	path = privileged.Bpffs(t)
	load(t, bpf.Options{Sizes: small(), PinPath: path}).Close()
	pretend(t, path, "v6", "v8")
	objects = load(t, bpf.Options{Sizes: small(), PinPath: path})
	if err := objects.TakeOver(); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(path, "old_*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("what is being left: %v, %v", found, err)
	}
	return path, objects, found[0]
}

// Connections may have ended since the last copy, and others have their ports by then.
func TestAStartAfterAKillWhileFormerTablesGoCarriesNoConnectionAgain(t *testing.T) {
	path, objects, left := leaving(t)
	busy := filepath.Join(left, "links", "busy")
	if err := errors.Join(os.MkdirAll(busy, 0o700), unix.Mount("none", busy, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	err := objects.RemoveFormer()
	if gone := unix.Unmount(busy, 0); gone != nil {
		t.Fatal(gone)
	}
	if err == nil {
		t.Fatal("what is in use was removed")
	}
	objects.Close()
	again := load(t, bpf.Options{Sizes: small(), PinPath: path})
	if len(again.Former()) != 1 || again.Former()[0].Needs("backends", "address") != nil || again.Former()[0].Needs("flows") == nil {
		t.Errorf("%d former tables, with flows: %v", len(again.Former()), again.Former()[0].Needs("flows"))
	}
	if err := again.RemoveFormer(); err != nil {
		t.Error(err)
	}
	wantGenerations(t, path, "v6")
}

// Programs that are left run no more once they are detached, though their files are there: what they wrote is carried over then.
func TestFormerProgramsAreDetachedBeforeTheyAreRemoved(t *testing.T) {
	privileged.Namespace(t, func(*os.File) {
		_, objects, left := leaving(t)
		at := link.TCXOptions{Interface: 1, Program: objects.ToNet, Attach: ebpf.AttachTCXEgress}
		l, err := link.AttachTCX(at)
		if errors.Is(err, ebpf.ErrNotSupported) {
			t.Skip("this kernel has no TCX")
		}
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Join(left, "links"), 0o700), l.Pin(filepath.Join(left, "links", "1_egress")), l.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []int{1, 0} {
			attached, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXEgress})
			if err != nil || len(attached.Programs) != want {
				t.Errorf("%d programs are attached, want %d: %v", len(attached.Programs), want, err)
			}
			objects.DetachFormer()
		}
		if err := objects.RemoveFormer(); err != nil {
			t.Error(err)
		}
	})
}

func TestCleanupTakesEveryGenerationAway(t *testing.T) {
	path := privileged.Bpffs(t)
	load(t, bpf.Options{Sizes: small(), PinPath: path}).Close()
	pretend(t, path, "v6", "v1")
	load(t, bpf.Options{Sizes: small(), PinPath: path}).Close()
	pretend(t, path, "v1", "old_5_v1")
	if err := os.MkdirAll(filepath.Join(path, "v9", "maps"), 0o700); err != nil {
		t.Fatal(err)
	}
	if removed, err := bpf.Cleanup(path); err != nil || len(removed) == 0 {
		t.Errorf("cleanup: %v, %v", removed, err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pin path is still there: %v", err)
	}
}

func TestProgramsThatNobodyAttachedGo(t *testing.T) {
	path := privileged.Bpffs(t)
	attached := load(t, bpf.Options{Sizes: small(), PinPath: path})
	info, err := attached.FromPod.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	load(t, bpf.Options{Sizes: small(), PinPath: path}).Close() // died before it attached anything
	objects := load(t, bpf.Options{Sizes: small(), PinPath: path})
	if err := objects.RemoveUnattachedPrograms(map[ebpf.ProgramID]bool{id: true}); err != nil {
		t.Fatal(err)
	}
	dirs, err := os.ReadDir(filepath.Join(path, "v6", "programs"))
	if err != nil || len(dirs) != 2 {
		t.Errorf("pinned programs are %v (%v), want those that are attached and this load's", dirs, err)
	}
}
