// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearlb/nearlb/pkg/metrics"
	"github.com/nearlb/nearlb/pkg/watch"
	"github.com/nearlb/nearlb/tests/fakeclient"
)

// following is a loop on the objects of an API server.
type following struct {
	*bench
	client *fakeclient.Clientset
	origin watch.Source
}

// follow starts an agent's loop on these tables, as Run does.
func follow(t *testing.T, tables *witnessed, objects ...runtime.Object) following {
	log := slog.New(slog.DiscardHandler)
	client := fakeclient.NewClientset(objects...)
	source := watch.Kubernetes(client.Client(nil), watch.NodeConfig{Name: "n1"}, log)
	guard := DefaultOptions().MassDeletion
	guard.Published = tables.Serving
	source.Guard(guard)
	l := newLoop(source, tables, metrics.New("test"), newDiary(), log,
		loopOptions{auditEvery: testAudit, reclaimEvery: testReclaim, debounce: testDebounce, checks: asked{}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- source.Run(ctx, l) }()
	go func() { ended <- l.run(ctx) }()
	stop := func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	b := &bench{T: t, loop: l, tables: tables, stop: stop}
	b.after(time.Second)
	return following{b, client, source}
}

func aCluster() []runtime.Object {
	return []runtime.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		apiService("web", "10.96.0.10"), apiSlice("web", "web-1", "10.244.1.1"),
		apiService("api", "10.96.0.11"), apiSlice("api", "api-1", "10.244.1.2")}
}

func TestAnAgentThatStartsOverAnEmptyServerLeavesTheTablesAsTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tables := newWitnessed()
		follow(t, tables, aCluster()...).stop()
		before := dump(t, tables)
		tables.taken()
		f := follow(t, tables)
		f.want("configure", "audit")
		if s := f.status(); s.State != Serving || s.Dirty != 0 {
			t.Errorf("%+v; want an agent that serves and has nothing to do", s)
		}
		for _, o := range aCluster()[1:] {
			_ = f.client.Tracker().Add(o)
			f.after(testDebounce)
		}
		calls := tables.taken()
		for _, want := range []string{"apply web", "apply api", "configure"} { // whose addresses the Node has
			if !slices.Contains(calls, want) {
				t.Errorf("the tables saw %q, and no %q", calls, want)
			}
		}
		if after := dump(t, tables); after != before {
			t.Errorf("the tables were changed:\n%s\nbefore:\n%s", after, before)
		}
		f.stop()
	})
}

func TestAServerThatStaysEmptyIsBelievedInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tables := newWitnessed()
		follow(t, tables, aCluster()...).stop()
		f := follow(t, tables)
		tables.taken()
		f.after(DefaultOptions().MassDeletion.Grace)
		if names := tables.Published(); len(names) != 0 || f.origin.Health().Held.Any() {
			t.Errorf("%v still there; calls %q", names, tables.taken())
		}
		f.stop()
	})
}
