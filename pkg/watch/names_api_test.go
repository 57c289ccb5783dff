// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/fakeclient"
)

// withNames is withAPI for a source that reads what names are made of.
func withNames(t *testing.T, pods bool, test func(a *api, names NameSource, to *told), objects ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		to := newTold()
		a := &api{t: t, client: fakeclient.NewClientset(objects...), recorder: newRecorder()}
		a.source = Kubernetes(a.client.Client(nil), NodeConfig{Name: "n1", Names: to, NamedPods: pods}, slog.New(a.recorder))
		a.run(t, a.source)
		synctest.Wait()
		test(a, a.source.(NameSource), to)
	})
}

func headless(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }

// A headless Service and its slices decide nothing for packets, and are news for names.
func TestNamesAreReadFromTheAPIServerWhereTheyAreWanted(t *testing.T) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "prod"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "p"}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.1.9.9"}}}}
	db := apiSlice("db-a", "db", "10.1.0.1", "10.1.0.2")
	db.Labels[labelHeadless] = ""
	withNames(t, true, func(a *api, names NameSource, to *told) {
		same(t, "syncs", a.synced(), 1)
		same(t, "told", to.all(), "namespace prod: exists\nnode n1: a\npod p: [10.1.9.9]")
		same(t, "services of packets", len(a.source.Services()), 1)
		same(t, "services of names", names.NamedServices(), []lb.ServiceName{{Namespace: "default", Name: "db"}, {Namespace: "default", Name: "web"}})
		got := names.Named(lb.ServiceName{Namespace: "default", Name: "db"})
		same(t, "endpoints", len(got.Slices[0].Endpoints), 2)
		same(t, "headless", got.Headless, true)

		db = db.DeepCopy()
		db.Endpoints = db.Endpoints[:1]
		a.setSlice(db)
		same(t, "changes of db", a.changed("db"), 1)
		a.setSlice(db.DeepCopy())
		same(t, "changes of db that changed nothing", a.changed("db"), 1)
		got = names.Named(lb.ServiceName{Namespace: "default", Name: "db"})
		same(t, "address left", got.Slices[0].Endpoints[0].Addr(), netip.MustParseAddr("10.1.0.1"))

		must(t, a.client.CoreV1().Namespaces().Delete(t.Context(), "prod", metav1.DeleteOptions{}))
		must(t, a.client.CoreV1().Pods("prod").Delete(t.Context(), "p", metav1.DeleteOptions{}))
		must(t, a.client.CoreV1().Services("default").Delete(t.Context(), "db", metav1.DeleteOptions{}))
		a.setNode(apiNode("n1", "b"))
		same(t, "told at last", to.all(), "node n1: b")
		got = names.Named(lb.ServiceName{Namespace: "default", Name: "db"})
		same(t, "slices without a Service", got.Unserved, true)
	}, apiService("web"), apiService("db", headless), db, apiNode("n1", "a"), namespace, pod)
}

// An agent that may not read what names alone are made of serves packets all the same, and answers no names.
func TestPacketsDoNotWaitForNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{t: t, client: fakeclient.NewClientset(apiService("web"), apiNode("n1", "a")), recorder: newRecorder()}
		var allowed atomic.Bool
		a.client.PrependReactor("list", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !allowed.Load(), nil, apierrors.NewForbidden(corev1.Resource("namespaces"), "", nil)
		})
		a.source = Kubernetes(a.client.Client(nil), NodeConfig{Name: "n1", Names: newTold()}, slog.New(a.recorder))
		a.run(t, a.source)
		synctest.Wait()
		names := a.source.(NameSource)
		same(t, "syncs", a.synced(), 1)
		same(t, "names are known", names.NamesKnown(), false)
		allowed.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		same(t, "names are known in the end", names.NamesKnown(), true)
	})
}

func TestPodsAreNotReadForNamesThatNobodyWants(t *testing.T) {
	withNames(t, false, func(a *api, _ NameSource, _ *told) {
		same(t, "syncs", a.synced(), 1)
		for _, action := range a.client.Actions() {
			if action.GetResource().Resource == "pods" {
				t.Errorf("asked for %v", action)
			}
		}
	}, apiNode("n1", "a"))
}

// With a directory names come from the same files as packets.
func TestNamesAreReadFromADirectory(t *testing.T) {
	to := newTold()
	d := Manifests(t.TempDir(), NodeConfig{Name: "n1", Zone: "z", Names: to}, slog.New(slog.DiscardHandler)).(*directory)
	objects, err := d.read("a.yaml", []byte(namesManifest), func(w string) { t.Error(w) })
	if err != nil {
		t.Fatal(err)
	}
	d.apply(objects, nil, &changes{})
	if len(d.NamedServices()) == 0 || to.what["node n1"] != "z" {
		t.Errorf("got %v, told %v", d.NamedServices(), to.all())
	}
}
