// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/tests/privileged"
)

// Speed is judged by people who run `make bench`; here every path has to be the path that it says it is.
func TestEveryPathIsMeasuredAndIsWhatItSays(t *testing.T) {
	privileged.Require(t)
	rounds := 0
	r, err := Run(t.Context(), Options{Runs: 1, Packets: 2000, Flows: []int{1, 500}, Progress: func(done, total int) { rounds++ }})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range r.Paths {
		names = append(names, p.Name)
		if p.Min <= 0 || p.Median < p.Min || p.Net > p.Min {
			t.Errorf("%s: minimum %v, median %v, net %v", p.Name, p.Min, p.Median, p.Net)
		}
	}
	for hook, ways := range map[string][]string{
		"from_pod": {"established", "new", "miss"}, "to_pod": {"established", "miss"},
		"from_net": {"established", "new", "established_by_snat", "new_by_snat", "miss"}, "to_net": {"established", "miss"},
		"xdp": {"established", "carried", "new", "refused", "miss"}, "kernel_hash": {"established"}, "kernel_lru": {"new"},
	} {
		of := worlds()
		if strings.HasPrefix(hook, "kernel") {
			of = of[:1]
		}
		for _, w := range of {
			for _, way := range ways {
				if name := hook + "/" + w.name + "/" + way; !slices.Contains(names, name) {
					t.Errorf("path %s is missing", name)
				}
			}
		}
	}
	if r.Floor.Empty <= 0 || r.Kernel == "" || r.CPU == "" || rounds != 2 { // what is carried has a part of its own
		t.Errorf("result is incomplete: %+v after %d rounds", r, rounds)
	}
}

func TestPathsAreChosenByName(t *testing.T) {
	privileged.Require(t)
	r, err := Run(t.Context(), Options{Runs: 1, Packets: 100, Flows: []int{1}, Paths: []string{"to_pod/udp6"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Paths) != 2 {
		t.Errorf("got %v, want the two paths of to_pod/udp6", r.Paths)
	}
}

// More flows than the table of default size has room for are measured over a larger one, and their rows follow those of fewer.
func TestFlowsBeyondTheDefaultTableAreMeasuredOverALargerOne(t *testing.T) {
	privileged.Require(t)
	rounds := 0
	r, err := Run(t.Context(), Options{Runs: 4, Packets: 100, Flows: []int{1, flowsMax + 1}, Paths: []string{"to_pod/udp6", "kernel_hash"},
		Progress: func(done, total int) {
			if rounds++; done != rounds || total != 5 {
				t.Errorf("round %d says that %d of %d are done", rounds, done, total)
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, p := range r.Paths {
		rows = append(rows, fmt.Sprint(p.Name, " ", p.Flows))
	}
	want := []string{"kernel_hash/tcp4/established 1", "kernel_hash/tcp4/established 131073",
		"to_pod/udp6/established 1", "to_pod/udp6/established 131073", "to_pod/udp6/miss 0"}
	if !slices.Equal(rows, want) {
		t.Errorf("rows are %q, want %q", rows, want)
	}
	if _, err := Run(t.Context(), Options{Flows: []int{flowsMost + 1}}); err == nil {
		t.Error("more flows than any table has were not refused")
	}
}

// One packet of a flow in eight seconds goes by TC, and a path is looked at whenever that is.
func TestAPathAtXDPIsVerifiedThoughAPacketIsLeftToTC(t *testing.T) {
	privileged.Require(t)
	_, err := elsewhere(func() (Result, error) {
		p := part{Options: Options{Flows: []int{1}, Paths: []string{"xdp/tcp4/established", "xdp/tcp6/established"}}, table: 2 * flowsMax}
		b, err := p.open()
		if err != nil {
			return Result{}, err
		}
		defer b.close()
		courses, err := b.courses(p)
		if err != nil {
			return Result{}, err
		}
		for _, c := range courses {
			if err := c.verify(b); err != nil {
				return Result{}, err
			}
			if c.xdp != nil && age(t, b) == 0 {
				t.Error("the program at XDP remembers no way")
			}
			if err := c.verify(b); err != nil {
				t.Errorf("%s: its way is nine seconds old: %v", c.name, err)
			}
		}
		return Result{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// age has the ways of all flows be nine seconds old or more, and tells how many there are.
func age(t *testing.T, b *bench) (ways int) {
	t.Helper()
	const nineSeconds = 9 * 1000 // jiffies, or more: a kernel has at most a thousand in a second
	var all []bpf.NearlbXdpWay
	for slot := range b.objects.XdpWays.MaxEntries() {
		if err := b.objects.XdpWays.Lookup(slot, &all); err != nil {
			t.Fatal(err)
		}
		found := false
		for i := range all {
			if all[i].Ifindex != 0 {
				all[i].When -= nineSeconds
				found = true
			}
		}
		if !found {
			continue
		}
		ways++
		if err := b.objects.XdpWays.Put(slot, all); err != nil {
			t.Fatal(err)
		}
	}
	return ways
}
