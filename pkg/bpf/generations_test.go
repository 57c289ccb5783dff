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
	pretend(t, path, "v5", "v7")
	if _, err := bpf.OpenMaps(path, true); !errors.Is(err, bpf.ErrIncompatible) || !strings.Contains(err.Error(), "of layout v7, this nearlb has v5") {
		t.Errorf("a read command says %v", err)
	}

	killed := load(t, bpf.Options{Sizes: small(), PinPath: path})
	wantGenerations(t, path, "new_v5", "v7")
	killed.Close()
	objects := load(t, bpf.Options{Sizes: small(), PinPath: path})
	wantGenerations(t, path, "new_v5", "v7")
	if !objects.Fresh() || len(objects.Former()) != 1 || objects.Former()[0].Layout() != "v7" {
		t.Errorf("fresh %v beside %v, want new tables beside those of v7", objects.Fresh(), objects.Former())
	}
	if objects.Sizes().Backends != 128 {
		t.Errorf("room for %d backends, want that of the other layout", objects.Sizes().Backends)
	}
	if err := objects.TakeOver(); err != nil {
		t.Fatal(err)
	}
	wantGenerations(t, path, "old_v7", "v5")
	objects.Close()
	again := load(t, bpf.Options{Sizes: small(), PinPath: path})
	if again.Fresh() || len(again.Former()) != 1 {
		t.Errorf("fresh %v beside %d others, want the start to go on with the upgrade", again.Fresh(), len(again.Former()))
	}
	if err := again.RemoveFormer(); err != nil {
		t.Fatal(err)
	}
	wantGenerations(t, path, "v5")
}

func TestAStartThatWasKilledBetweenTwoRenamesIsUndone(t *testing.T) {
	path := privileged.Bpffs(t)
	load(t, bpf.Options{Sizes: small(), PinPath: path}).Close()
	pretend(t, path, "v5", "v7")
	load(t, bpf.Options{Sizes: small(), PinPath: path}).Close()
	pretend(t, path, "v7", "old_1_v7")
	wantGenerations(t, path, "new_v5", "old_v7")
	objects := load(t, bpf.Options{Sizes: small(), PinPath: path})
	if !objects.Fresh() || len(objects.Former()) != 1 {
		t.Errorf("fresh %v beside %d others, want new tables beside one", objects.Fresh(), len(objects.Former()))
	}
	wantGenerations(t, path, "new_v5", "v7")
}

func TestTablesThatDoNotFitTheirNameAreReplacedAndNotRefused(t *testing.T) {
	path := privileged.Bpffs(t)
	load(t, bpf.Options{Sizes: small(), PinPath: path}).Close()
	odd, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer odd.Close()
	pin := filepath.Join(path, "v5", "maps", "names")
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
	wantGenerations(t, path, "old_v5", "v5")
}

func TestCleanupTakesEveryGenerationAway(t *testing.T) {
	path := privileged.Bpffs(t)
	load(t, bpf.Options{Sizes: small(), PinPath: path}).Close()
	pretend(t, path, "v5", "v1")
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
	dirs, err := os.ReadDir(filepath.Join(path, "v5", "programs"))
	if err != nil || len(dirs) != 2 {
		t.Errorf("pinned programs are %v (%v), want those that are attached and this load's", dirs, err)
	}
}
