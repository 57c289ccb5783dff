// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"sync"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// pool keeps loaded programs for the next test that asks for the same: a load is some 500,000 steps of the verifier, which is
// seconds on a slow machine. Their tables are emptied before they are used again.
var pool = struct {
	sync.Mutex
	free  map[string][]*bpf.Objects
	fresh map[*bpf.Objects]bpf.NearlbSettings // the settings as they were after the load
}{free: map[string][]*bpf.Objects{}, fresh: map[*bpf.Objects]bpf.NearlbSettings{}}

// loaded gives programs with empty tables, for as long as the test runs.
func loaded(t testing.TB, o bpf.Options) *bpf.Objects {
	t.Helper()
	key := fmt.Sprintf("%v", o)
	objects := takeFree(key)
	if objects == nil {
		objects = load(t, o)
	} else {
		empty(t, objects)
	}
	t.Cleanup(func() {
		pool.Lock()
		defer pool.Unlock()
		pool.free[key] = append(pool.free[key], objects)
	})
	return objects
}

func takeFree(key string) *bpf.Objects {
	pool.Lock()
	defer pool.Unlock()
	n := len(pool.free[key])
	if n == 0 {
		return nil
	}
	objects := pool.free[key][n-1]
	pool.free[key] = pool.free[key][:n-1]
	return objects
}

func load(t testing.TB, o bpf.Options) *bpf.Objects {
	t.Helper()
	objects, err := bpf.Load(o)
	if err != nil {
		t.Fatal(err)
	}
	if few {
		walkedLittle(t, objects)
	}
	var settings bpf.NearlbSettings
	check(t, objects.Config.Lookup(uint32(0), &settings))
	pool.Lock()
	defer pool.Unlock()
	pool.fresh[objects] = settings
	return objects
}

// empty makes all tables what they were after the load.
func empty(t testing.TB, objects *bpf.Objects) {
	t.Helper()
	for name, table := range objects.NearlbMaps.ByName() {
		if err := emptyTable(table); err != nil {
			t.Fatalf("empty table %s: %v", name, err)
		}
	}
	pool.Lock()
	defer pool.Unlock()
	check(t, objects.Config.Put(uint32(0), pool.fresh[objects]))
}
