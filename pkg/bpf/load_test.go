// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/tests/privileged"
)

func small() bpf.Sizes {
	return bpf.Sizes{Frontends: 64, Records: 64, Slots: 4096, Backends: 64, FlowSets: 16, Affinity: 64, Fragments: 64, Answers: 64,
		SourceRanges: 64, Services: 64, Names: 64}
}

// long are the programs that take the verifier four fifths of a load. Tests of tables and pins do without: what they look at is the same for
// each program. The agent's have all.
var long = []string{
	bpf.NearlbProgFromNetIcmp, bpf.NearlbProgFromNetReply, bpf.NearlbProgFromNetSlow, bpf.NearlbProgFromPodDns, bpf.NearlbProgFromPodHairpin,
	bpf.NearlbProgFromPodIcmp, bpf.NearlbProgFromPodSlow, bpf.NearlbProgShortcut, bpf.NearlbProgSockConnect4, bpf.NearlbProgSockConnect6, bpf.NearlbProgSockExplain,
	bpf.NearlbProgSockSendmsg4, bpf.NearlbProgSockSendmsg6, bpf.NearlbProgToNetIcmp, bpf.NearlbProgToNetSlow, bpf.NearlbProgToPod, bpf.NearlbProgToPodIcmp,
	bpf.NearlbProgToPodSlow, bpf.NearlbProgTooBig,
}

// load loads all but the long ones.
func load(t *testing.T, o bpf.Options) *bpf.Objects {
	t.Helper()
	o.Without = long
	return loadAll(t, o)
}

func loadAll(t *testing.T, o bpf.Options) *bpf.Objects {
	t.Helper()
	objects, err := bpf.Load(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { objects.Close() })
	return objects
}

func TestLoadedTablesHaveTheAskedSizes(t *testing.T) {
	privileged.Require(t)
	if got := load(t, bpf.Options{Sizes: small()}).Sizes(); got != small() {
		t.Errorf("sizes %+v, want %+v", got, small())
	}
}

func TestPinnedTablesKeepContentsAndSizeOverALoad(t *testing.T) {
	path := privileged.Bpffs(t)
	first := load(t, bpf.Options{Sizes: small(), PinPath: path})
	key := bpf.NearlbNameKey{Kind: 2, Id: 7}
	if err := first.Names.Put(&key, &bpf.NearlbNameValue{}); err != nil {
		t.Fatal(err)
	}
	var settings, again bpf.NearlbSettings
	if err := first.Config.Lookup(uint32(0), &settings); err != nil {
		t.Fatal(err)
	}
	first.Close()

	larger := small()
	larger.Backends = 128
	second := load(t, bpf.Options{Sizes: larger, PinPath: path})
	var value bpf.NearlbNameValue
	if err := second.Names.Lookup(&key, &value); err != nil {
		t.Errorf("entry of the first load: %v", err)
	}
	if err := second.Config.Lookup(uint32(0), &again); err != nil || again != settings || settings.Seed == 0 {
		t.Errorf("settings changed: %+v, %+v, %v", settings, again, err)
	}
	if got := second.Sizes().Backends; got != 64 {
		t.Errorf("backends have %d entries, want the pinned 64", got)
	}
}

func TestEachLoadPinsItsOwnProgramsUntilTheOldOnesAreRemoved(t *testing.T) {
	path := privileged.Bpffs(t)
	load(t, bpf.Options{Sizes: small(), PinPath: path})
	second := load(t, bpf.Options{Sizes: small(), PinPath: path})
	count := func() int {
		dirs, err := os.ReadDir(filepath.Join(path, "v6", "programs"))
		if err != nil {
			t.Fatal(err)
		}
		return len(dirs)
	}
	if count() != 2 {
		t.Errorf("%d directories of programs, want 2", count())
	}
	if err := second.RemoveOldPrograms(); err != nil || count() != 1 {
		t.Errorf("%d directories of programs, want 1 (%v)", count(), err)
	}
}

func TestProgramsForDevicesWithoutAnEthernetHeaderShareTheTables(t *testing.T) {
	path := privileged.Bpffs(t)
	load(t, bpf.Options{Sizes: small(), PinPath: path})
	objects := load(t, bpf.Options{Sizes: small(), PinPath: path})
	from, to, err := objects.Layer3()
	if err != nil {
		t.Fatal(err)
	}
	if again, _, err := objects.Layer3(); err != nil || again != from {
		t.Errorf("the second call loaded another program (%v)", err)
	}
	for name, p := range map[string][2]*ebpf.Program{"from_net": {from, objects.FromNet}, "to_net": {to, objects.ToNet}} {
		flat, ethernet := tablesOf(t, p[0]), tablesOf(t, p[1])
		shared, private := 0, 0
		for id := range flat {
			if ethernet[id] {
				shared++
			} else {
				private++
			}
		}
		if shared == 0 || private == 0 {
			t.Errorf("%s shares %d tables with the Ethernet one, and has %d of its own; want some of each", name, shared, private)
		}
	}
	if err := objects.RemoveOldPrograms(); err != nil {
		t.Fatal(err)
	}
	dirs, err := os.ReadDir(filepath.Join(path, "v6", "programs"))
	if err != nil || len(dirs) != 2 || dirs[1].Name() != dirs[0].Name()+"_layer3" {
		t.Errorf("pinned programs are %v (%v), want this load's two", dirs, err)
	}
}

func tablesOf(t *testing.T, p *ebpf.Program) map[ebpf.MapID]bool {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	ids, _ := info.MapIDs()
	all := map[ebpf.MapID]bool{}
	for _, id := range ids {
		all[id] = true
	}
	return all
}

func TestCleanupLeavesAloneWhatIsNotOurs(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"v1/maps", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if removed, err := bpf.Cleanup(dir); err == nil || len(removed) > 0 {
		t.Errorf("an ordinary directory was cleaned up: %v, %v", removed, err)
	}
	path := privileged.Bpffs(t)
	load(t, bpf.Options{Sizes: small(), PinPath: path})
	if err := os.Mkdir(filepath.Join(path, "other"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := bpf.Cleanup(path); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(path)
	if err != nil || len(left) != 1 || left[0].Name() != "other" {
		t.Errorf("left after a clean-up: %v (%v)", left, err)
	}
}

// Somebody pinned a table among the loads, and one where the links were.
func TestCleanupGetsPastPinsThatAreNoDirectories(t *testing.T) {
	path := privileged.Bpffs(t)
	objects := load(t, bpf.Options{Sizes: small(), PinPath: path})
	links := bpf.LinkDirectory(path)
	if err := os.Remove(links); err != nil {
		t.Fatal(err)
	}
	for _, pin := range []string{filepath.Join(filepath.Dir(links), "programs", "stray"), links} {
		stray, err := objects.Frontends.Clone()
		if err == nil {
			err = errors.Join(stray.Pin(pin), stray.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if programs, err := bpf.PinnedPrograms(path); err != nil || len(programs) == 0 {
		t.Errorf("%d programs are found, %v", len(programs), err)
	}
	if _, err := bpf.Cleanup(path); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left after a clean-up: %v (%v)", left, err)
	}
}

func TestTablesAreOpenedReadOnlyForTheCommandLine(t *testing.T) {
	path := privileged.Bpffs(t)
	if _, err := bpf.OpenMaps(path, true); !errors.Is(err, bpf.ErrNoAgent) {
		t.Errorf("open where no agent ran: %v", err)
	}
	load(t, bpf.Options{Sizes: small(), PinPath: path})
	tables, err := bpf.OpenMaps(path, true)
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	if err := tables.Names.Put(&bpf.NearlbNameKey{}, &bpf.NearlbNameValue{}); err == nil {
		t.Error("a read-only table was written")
	}
	pin := filepath.Join(filepath.Dir(bpf.LinkDirectory(path)), "maps", bpf.NearlbMapNames)
	if err := errors.Join(os.Remove(pin), os.Mkdir(pin, 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := bpf.OpenMaps(path, true); err == nil || !strings.HasPrefix(err.Error(), "open tables under "+path+": table names: ") {
		t.Errorf("a directory in the place of a table: %v", err)
	}
}

// An agent of before some tables leaves the others, and so does who removes pins. Before any programs are pinned it is a first start.
func TestTablesThatAreMissingAmongOthersAreNamed(t *testing.T) {
	path := privileged.Bpffs(t)
	load(t, bpf.Options{Sizes: small(), PinPath: path})
	own := filepath.Dir(bpf.LinkDirectory(path))
	said := func(removed ...string) string {
		for _, name := range removed {
			if err := os.Remove(filepath.Join(own, "maps", name)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := bpf.OpenMaps(path, true)
		if err == nil || errors.Is(err, bpf.ErrNoAgent) {
			t.Fatalf("tables are missing, and the error is %v", err)
		}
		return err.Error()
	}
	if text := said(bpf.NearlbMapFlowSpills); !strings.Contains(text, "but not table flow_spills: an agent of another version") {
		t.Error(text)
	}
	if text := said(bpf.NearlbMapFlows, bpf.NearlbMapNames, bpf.NearlbMapVerdicts); !strings.Contains(text, "but not table flow_spills, flows, names and 1 more: ") {
		t.Error(text)
	}
	load(t, bpf.Options{Sizes: small(), PinPath: path}) // as it says
	if tables, err := bpf.OpenMaps(path, true); err != nil {
		t.Error(err)
	} else {
		tables.Close()
	}
	said(bpf.NearlbMapFlows)
	if err := os.RemoveAll(filepath.Join(own, "programs")); err != nil {
		t.Fatal(err)
	}
	if _, err := bpf.OpenMaps(path, true); !errors.Is(err, bpf.ErrNoAgent) {
		t.Errorf("no program is pinned yet, and the error is %v", err)
	}
}

// Whoever names a path that has no tables reads which one that was.
func TestAPathThatCannotHaveTablesIsNamed(t *testing.T) {
	privileged.Require(t)
	file := filepath.Join(t.TempDir(), "a-file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bpf.OpenMaps(file, true); err == nil || err.Error() != "open tables under "+file+": not a directory (name the agent's --pin-path)" {
		t.Errorf("a file: %v", err)
	}
}

func TestPinningOutsideABpffsSaysHowToMountOne(t *testing.T) {
	privileged.Require(t)
	_, err := bpf.Load(bpf.Options{PinPath: filepath.Join(t.TempDir(), "pins")})
	if err == nil || !strings.Contains(err.Error(), "mount -t bpf bpf") {
		t.Errorf("error %v does not say how to mount", err)
	}
}

func TestKnobsAndSizesThatCannotWorkAreRefused(t *testing.T) {
	if _, err := bpf.Load(bpf.Options{Knobs: map[string]any{"no_such_knob": uint32(1)}}); err == nil {
		t.Error("unknown knob accepted")
	}
	if _, err := bpf.Load(bpf.Options{Sizes: bpf.Sizes{FlowSets: 3}}); err == nil {
		t.Error("three flow sets accepted")
	}
}

func TestASecondAgentOnAPinPathIsRefusedByName(t *testing.T) {
	dir := t.TempDir()
	lock, err := bpf.Lock(dir, "/sys/fs/bpf/a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bpf.Lock(dir, "/sys/fs/bpf//a/"); !errors.Is(err, bpf.ErrLocked) || !strings.Contains(err.Error(), "process ") {
		t.Errorf("second lock: %v", err)
	}
	other, err := bpf.Lock(dir, "/sys/fs/bpf/b")
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	lock.Close()
	again, err := bpf.Lock(dir, "/sys/fs/bpf/a")
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestNamesComeFromTheObject(t *testing.T) {
	verdicts := bpf.Verdicts()
	if len(verdicts) != int(bpf.NearlbVerdictVERDICT_MAX) {
		t.Fatalf("%d verdicts, want %d", len(verdicts), bpf.NearlbVerdictVERDICT_MAX)
	}
	got := bpf.VerdictOf(uint32(bpf.NearlbVerdictVERDICT_TRANSLATE_ESTABLISHED))
	want := bpf.Verdict{Number: got.Number, Name: "translate_established", Class: bpf.Translate, Reason: "established"}
	if got != want {
		t.Errorf("verdict %+v, want %+v", got, want)
	}
	if hooks := bpf.Hooks(); len(hooks) != int(bpf.NearlbHookHOOK_MAX) || hooks[0] != "from_pod" {
		t.Errorf("hooks %v", hooks)
	}
	if got := bpf.ReasonName(uint8(bpf.NearlbReasonREASON_SAME_ZONE)); got != "same-zone" {
		t.Errorf("reason %q", got)
	}
}

// What is pinned needs nobody who may load programs: that process may have ended.
func TestPinnedProgramsForDevicesWithoutAnEthernetHeaderNeedNoLoader(t *testing.T) {
	options := bpf.Options{Sizes: small(), PinPath: privileged.Bpffs(t), Without: long}
	objects := load(t, options)
	adopted, err := bpf.Adopt(options, objects.Loaded())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { adopted.Close() })
	ended := errors.New("the loader has ended")
	if err := adopted.AdoptLayer3(func(bpf.Loaded) error { return ended }); !errors.Is(err, ended) {
		t.Errorf("before they are pinned: %v, want %v", err, ended)
	}
	if _, _, err := objects.Layer3(); err != nil {
		t.Fatal(err)
	}
	if err := adopted.AdoptLayer3(func(bpf.Loaded) error { return ended }); err != nil {
		t.Errorf("where they are pinned: %v", err)
	}
}

// Programs that somebody damaged are loaded again. What may be attached of them keeps its tail calls until others are in its place.
func TestDamagedProgramsForDevicesWithoutAnEthernetHeaderAreLoadedAgain(t *testing.T) {
	options := bpf.Options{Sizes: small(), PinPath: privileged.Bpffs(t), Without: long}
	objects := load(t, options)
	if _, _, err := objects.Layer3(); err != nil {
		t.Fatal(err)
	}
	programs := func() []string {
		dirs, err := filepath.Glob(filepath.Join(options.PinPath, "*", "*", "*_layer3"))
		if err != nil || len(dirs) == 0 {
			t.Fatalf("pinned: %v (%v)", dirs, err)
		}
		return dirs
	}
	if err := os.Remove(filepath.Join(programs()[0], "from_net")); err != nil {
		t.Fatal(err)
	}
	adopted, err := bpf.Adopt(options, objects.Loaded())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { adopted.Close() })
	if err := adopted.AdoptLayer3(func(l bpf.Loaded) error { return bpf.HandLayer3(options, l) }); err != nil {
		t.Fatal(err)
	}
	fromNet, toNet, err := adopted.Layer3()
	if err != nil || fromNet == nil || toNet == nil {
		t.Errorf("from_net %v, to_net %v (%v)", fromNet, toNet, err)
	}
	if dirs := programs(); len(dirs) != 2 {
		t.Errorf("beside the new ones the damaged ones stay: %v", dirs)
	}
	if err := adopted.RemoveOldPrograms(); err != nil {
		t.Fatal(err)
	}
	if dirs := programs(); len(dirs) != 1 {
		t.Errorf("after everything is in place: %v", dirs)
	}
}
