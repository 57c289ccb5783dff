// SPDX-License-Identifier: Apache-2.0

// Package oracle compares nearlb's decisions with those of kube-proxy's own code: random worlds of API objects go into the
// trackers and the endpoint selection of k8s.io/kubernetes/pkg/proxy, and into nearlb (objects -> pkg/watch -> pkg/decide).
// Both must have the same frontends, and for each the same answer and endpoints for clients of this node and of
// elsewhere, the same session affinity and source ranges, and the same health check ports and counts.
// Differences that are meant are in differences_test.go, each with its reason; any other is a bug.
//
// It is a module of its own, so that nearlb does not depend on Kubernetes' whole tree. -rapid.checks=N sets the number
// of worlds, -rapid.seed=N repeats what a failure printed.
package oracle

import (
	"flag"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/tests/worlds"
)

// manyWorlds is the number of each test's worlds, together at least 100,000.
const manyWorlds = "50000"

func TestMain(m *testing.M) {
	flag.Parse()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if !given["rapid.checks"] {
		if err := flag.Set("rapid.checks", manyWorlds); err != nil {
			panic(err)
		}
	}
	if !given["rapid.seed"] {
		seeds.common, _ = flag.Lookup("rapid.seed").Value.(flag.Getter).Get().(uint64)
	}
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // kube-proxy reports what it ignores, which is much of these worlds
	os.Exit(m.Run())
}

func TestKubeProxyGivesTheSameAnswers(t *testing.T) {
	t.Parallel()
	compareMany(t, false)
}

func TestKubeProxyGivesTheSameAnswersWhereAddressesComeSeveralTimes(t *testing.T) {
	t.Parallel()
	compareMany(t, true)
}

// seeds is what a test holds until rapid has read with which seed it starts.
var seeds struct {
	sync.Mutex
	common uint64 // RAPID_SEED; 0: none, or -rapid.seed repeats a failure of one test
}

// ownWorlds has the tests draw worlds of their own, where one seed is set for both. It is to be told when rapid has begun, which
// reads its seed before.
func ownWorlds(t *testing.T, copies bool) (begun func()) {
	if seeds.common == 0 {
		return func() {}
	}
	seeds.Lock()
	begun = sync.OnceFunc(seeds.Unlock)
	t.Cleanup(begun)
	own := seeds.common
	if copies {
		own += 1 << 62 // rapid adds the number of each world to its seed: the tests never meet
	}
	if err := flag.Set("rapid.seed", strconv.FormatUint(own, 10)); err != nil {
		t.Fatal(err)
	}
	return begun
}

// compareMany makes worlds until all are done or one differs, and sees that they were not all alike.
func compareMany(t *testing.T, copies bool) {
	unseen := allForms()
	begun := ownWorlds(t, copies)
	worlds.Check(t, copies, func(t *rapid.T, drawn worlds.World) {
		begun()
		w := world{drawn}
		got, err := askNearlb(w)
		if err != nil {
			t.Fatalf("nearlb refuses the world: %v\n%v", err, w)
		}
		want := askKubeProxy(w.withDifferences())
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("kube-proxy (-) and nearlb (+) differ:\n%s\n%v", diff, w)
		}
		unseen.note(want)
	})
	unseen.check(t)
}

// world is one that is told in another way for kube-proxy.
type world struct{ worlds.World }
