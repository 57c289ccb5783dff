// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearlb/nearlb/pkg/metrics"
	"github.com/nearlb/nearlb/pkg/watch"
	"github.com/nearlb/nearlb/tests/fakeclient"
)

var good4in6 = netip.MustParseAddr("::ffff:192.0.2.1")

func pointer[T any](v T) *T { return &v }

func apiService(name, clusterIP string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: clusterIP, ClusterIPs: []string{clusterIP},
			IPFamilies:      []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:           []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
			SessionAffinity: corev1.ServiceAffinityNone,
		},
	}
}

func apiSlice(service, name string, addresses ...string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: pointer("http"), Protocol: pointer(corev1.ProtocolTCP), Port: pointer(int32(8080))}},
	}
	for _, a := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: pointer("n1")})
	}
	return slice
}

// A1, A13, C5, C6: objects of an API server end up in the tables, and follow it.
func TestObjectsOfAnAPIServerReachTheTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		client := fakeclient.NewClientset(
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
			apiService("web", "10.96.0.10"), apiSlice("web", "web-1", "10.244.1.1"))
		log := slog.New(slog.DiscardHandler)
		source := watch.Kubernetes(client.Client(nil), watch.NodeConfig{Name: "n1"}, log)
		tables := newWitnessed()
		l := newLoop(source, tables, metrics.New("test"), newDiary(), log,
			loopOptions{auditEvery: testAudit, reclaimEvery: testReclaim, debounce: testDebounce, checks: asked{}})
		ended := make(chan error, 2)
		go func() { ended <- source.Run(ctx, l) }()
		go func() { ended <- l.run(ctx) }()
		want := func(what string, present ...string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			got := dump(t, tables)
			for _, text := range present {
				if !strings.Contains(got, text) {
					t.Errorf("%s: no %s in\n%s", what, text, got)
				}
			}
		}
		want("after the start", "10.96.0.10", "10.244.1.1")
		slices := client.DiscoveryV1().EndpointSlices("default")
		if _, err := slices.Create(ctx, apiSlice("web", "web-2", "10.244.1.2"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		want("with a second slice", "10.244.1.1", "10.244.1.2")
		unready := apiSlice("web", "web-1", "10.244.1.1")
		unready.Endpoints[0].Conditions.Ready = pointer(false)
		unready.Endpoints[0].Conditions.Serving = pointer(false)
		if _, err := slices.Update(ctx, unready, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		want("with an endpoint that is not ready", "quiet")
		if err := client.CoreV1().Services("default").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want("without the service")
		if got := dump(t, tables); strings.Contains(got, "10.96.0.10") {
			t.Errorf("the service is still there:\n%s", got)
		}
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}
