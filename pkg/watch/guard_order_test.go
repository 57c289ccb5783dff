// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/fakeclient"
)

// follower knows of a source what it was told of: its inputs are those that an agent would have published.
type follower struct {
	source Source
	inputs map[string]lb.Input
}

func (f *follower) ServiceChanged(name lb.ServiceName) {
	if f.source.Holds(name) {
		return
	}
	in, exists := f.source.Input(name)
	in.Triggered = time.Time{}
	f.inputs[name.String()] = in
	if !exists {
		delete(f.inputs, name.String())
	}
}

func (f *follower) everything() {
	for name := range f.inputs {
		var service lb.ServiceName
		_ = service.UnmarshalText([]byte(name)) // it is the text of one
		f.ServiceChanged(service)
	}
	for _, name := range f.source.Services() {
		f.ServiceChanged(name)
	}
}

func (f *follower) NodeChanged() {}
func (f *follower) Synced()      { f.everything() }

// origin is an API server whose objects change with or without its watch.
type origin struct {
	*rand.Rand
	cluster *cluster
	objects map[objectKey]runtime.Object
}

var listedKinds = []kind{kindService, kindSlice, kindNode, kindOthers}

func (s *origin) sink(k kind) *sink { return &sink{cluster: s.cluster, kind: k} }

// draw makes an object, and what it is after the converter.
func (s *origin) draw() (runtime.Object, objectKey) {
	o := rapid.Custom(func(t *rapid.T) runtime.Object { return world{t}.object() }).Example(s.Int())
	converted, refusal := convert(o)
	if refusal != nil {
		panic(refusal)
	}
	return o, converted.key
}

// step is something that happens.
func (s *origin) step() {
	switch s.IntN(10) {
	case 0, 1, 2, 3:
		o, key := s.draw()
		s.objects[key] = o
		_ = s.sink(s.cluster.resourceOf(key)).Add(o)
	case 4:
		if o, key := s.draw(); key != (objectKey{kindNode, "", "n1"}) && s.objects[key] != nil {
			delete(s.objects, key)
			_ = s.sink(s.cluster.resourceOf(key)).Delete(o)
		}
	case 5, 6:
		s.lapse()
	case 7:
		s.list(listedKinds[s.IntN(len(listedKinds))])
	case 8:
		time.Sleep(time.Duration(s.Int64N(int64(3 * grace / 2))))
	case 9:
		s.cluster.outage.failed(kindSlice, errors.New("connection refused"))
	}
}

// lapse loses much, or little, and gains some, and nobody knows until the next list. The own Node's object stays: what it said
// outlives it.
func (s *origin) lapse() {
	k, share := listedKinds[s.IntN(len(listedKinds))], []int{10, 50, 100}[s.IntN(3)]
	for _, key := range slices.SortedFunc(maps.Keys(s.objects), objectKey.compare) {
		if s.cluster.resourceOf(key) == k && key != (objectKey{kindNode, "", "n1"}) && s.IntN(100) < share {
			delete(s.objects, key)
		}
	}
	for range s.IntN(3) {
		if o, key := s.draw(); s.cluster.resourceOf(key) == k {
			s.objects[key] = o
		}
	}
	s.list(k)
}

func (s *origin) list(k kind) {
	s.cluster.outage.worked(kindSlice)
	var list []any
	for key, o := range s.objects {
		if s.cluster.resourceOf(key) == k {
			list = append(list, o)
		}
	}
	_ = s.sink(k).Replace(list, "")
}

// A17, with the guard: whatever was held in between, in the end what the server has is in force, and was told.
func TestAnyHistoryEndsInWhatTheServerHasOnceTheGuardsTimeIsOver(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			c := Kubernetes(fakeclient.NewClientset().Client(nil), NodeConfig{Name: "n1"}, slog.New(slog.DiscardHandler)).(*cluster)
			defer c.announcer.queue.ShutDown()
			guard := published(map[string]bool{"web": true, "api": true, "old": true})
			guard.Percent = []int{0, 50, 99}[seed%3]
			c.Guard(guard)
			f := &follower{c, map[string]lb.Input{"default/old": {}}}
			c.ev, c.waiting[kindServiceCIDR] = f, false
			s := &origin{Rand: rand.New(rand.NewPCG(seed, 4)), cluster: c, objects: map[objectKey]runtime.Object{}}
			for _, k := range listedKinds {
				s.list(k)
			}
			for range 40 {
				s.step()
			}
			for _, k := range listedKinds {
				s.list(k)
			}
			time.Sleep(2 * grace)
			synctest.Wait()
			if h := c.Health(); h.Held.Any() || c.guard.any() {
				t.Fatalf("seed %d: still held: %+v", seed, h)
			}
			fresh := newStore(NodeConfig{Name: "n1"})
			for _, o := range s.objects {
				converted, _ := convert(o)
				fresh.apply([]object{converted}, nil, &changes{})
			}
			if diff := viewOf(fresh).diff(viewOf(c.store)); diff != "" {
				t.Fatalf("seed %d: another end than what the server has (-server +got):\n%s", seed, diff)
			}
			if diff := cmp.Diff(viewOf(c.store).Inputs, f.inputs, exactly); diff != "" {
				t.Fatalf("seed %d: not all was told (-is +told):\n%s", seed, diff)
			}
		})
	}
}
