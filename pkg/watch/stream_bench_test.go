// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch/clientset"
)

// streamed is a server that answers each kind's streamed list with bytes made before: objects as large as real ones, in protobuf.
type streamed map[string][]byte

func (s streamed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, known := s[r.URL.Path]
	if !known || r.URL.Query().Get("sendInitialEvents") != "true" {
		w.Header().Set("Content-Type", "application/json")
		refuseRequest(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
	_, _ = w.Write(text)
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// events encodes objects as a watch does that begins with a list; the last object is the bookmark.
func eventStream(objects []kruntime.Object) []byte {
	var out bytes.Buffer
	scheme := clientset.Types()
	inner, outer := protobuf.NewSerializer(scheme, scheme), protobuf.NewRawSerializer(scheme, scheme)
	frames := protobuf.LengthDelimitedFramer.NewFrameWriter(&out)
	for i, o := range objects {
		kind := "ADDED"
		if i == len(objects)-1 {
			kind = "BOOKMARK"
		}
		var text, event bytes.Buffer
		if err := inner.Encode(o, &text); err != nil {
			panic(err)
		}
		if err := outer.Encode(&metav1.WatchEvent{Type: kind, Object: kruntime.RawExtension{Raw: text.Bytes()}}, &event); err != nil {
			panic(err)
		}
		_, _ = frames.Write(event.Bytes())
	}
	return out.Bytes()
}

// managed is what the API server keeps for itself in each object.
func managed(o metav1.Object, i int, size int) {
	o.SetUID(types.UID(fmt.Sprintf("0f6e1c3a-%04x-4f7e-9c7e-%012x", i%65536, i)))
	o.SetResourceVersion(strconv.Itoa(1000 + i))
	o.SetCreationTimestamp(metav1.Unix(1700000000, 0))
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`"` + strings.Repeat("f", size) + `"`)}})
}

func realService(i int) *corev1.Service {
	name := fmt.Sprintf("web-%d", i)
	out := apiService(name, func(s *corev1.Service) {
		s.Spec.ClusterIP = netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)}).String()
		s.Spec.ClusterIPs, s.Spec.Type = []string{s.Spec.ClusterIP}, corev1.ServiceTypeClusterIP
		s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = []corev1.IPFamily{corev1.IPv4Protocol}, new(corev1.IPFamilyPolicySingleStack)
		s.Spec.SessionAffinity, s.Spec.InternalTrafficPolicy = corev1.ServiceAffinityNone, new(corev1.ServiceInternalTrafficPolicyCluster)
	})
	out.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	out.Labels = map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "helm", "team": "shop"}
	managed(out, i, 600)
	return out
}

func realSlice(i, endpoints int) *discoveryv1.EndpointSlice {
	owner := fmt.Sprintf("web-%d", i)
	out := apiSlice(owner+"-x7k2p", owner)
	out.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
	out.Labels["endpointslice.kubernetes.io/managed-by"] = "endpointslice-controller.k8s.io"
	out.Annotations = map[string]string{annotationTrigger: "2023-11-14T22:13:20Z"}
	out.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: owner, UID: "0f6e1c3a-0000-4f7e-9c7e-000000000000", Controller: new(true)}}
	for j := range endpoints {
		n := i*endpoints + j
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{netip.AddrFrom4([4]byte{10, 128 + byte(n>>16), byte(n >> 8), byte(n)}).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   new(fmt.Sprintf("node-%d.example.internal", n%500)), Zone: new("region-1" + string("abc"[n%3])),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("%s-7d4b9c-%05d", owner, j), UID: types.UID(fmt.Sprintf("4f6e1c3a-0000-4f7e-9c7e-%012x", n))},
		})
	}
	managed(out, i, 500)
	return out
}

// bigServer has as many Services with as many endpoints each, and as many Nodes of ten kilobytes.
func bigServer(services, endpoints, nodes int) streamed {
	of := map[string][]kruntime.Object{}
	for i := range services {
		of[servicesPath] = append(of[servicesPath], realService(i))
		of[slicesPath] = append(of[slicesPath], realSlice(i, endpoints))
	}
	for i := range nodes {
		n := apiNode(fmt.Sprintf("node-%d.example.internal", i), "region-1"+string("abc"[i%3]))
		n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}).String()}}
		for j := range 50 {
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example/%0100d:%d", j, i)}})
		}
		managed(n, i, 3000)
		of[nodesPath] = append(of[nodesPath], n)
	}
	out := streamed{}
	ends := map[string]kruntime.Object{
		servicesPath: &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: bookmark()},
		nodesPath:    &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: bookmark()},
		slicesPath:   &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, ObjectMeta: bookmark()},
	}
	for path, end := range ends {
		out[path] = eventStream(append(of[path], end))
	}
	return out
}

func bookmark() metav1.ObjectMeta {
	return metav1.ObjectMeta{ResourceVersion: "9000000", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
}

// BenchmarkStreamedList is the start of a source, from its first request to the last input handed out: processor of the process (the
// server's part is to write bytes that it has), memory held when it is over, and the most that the heap had.
func BenchmarkStreamedList(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{10000, 10}, {50000, 5}} {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			server := httptest.NewServer(bigServer(size.services, size.endpoints, 500))
			defer server.Close()
			var spent time.Duration
			var held, most float64
			for b.Loop() {
				before, began := heap(), processor()
				ctx, cancel := context.WithCancel(b.Context())
				client, err := clientset.For(tuned(&rest.Config{Host: server.URL, QPS: -1}))
				if err != nil {
					b.Fatal(err)
				}
				source := Kubernetes(client, NodeConfig{Name: "node-1.example.internal"}, slog.New(slog.DiscardHandler))
				end := newRecorder()
				done := make(chan error, 1)
				go func() { done <- source.Run(ctx, end) }()
				peak := uint64(0)
				for end.synced() == 0 {
					select {
					case <-end.wake:
					case <-time.After(5 * time.Millisecond):
					}
					var m runtime.MemStats
					runtime.ReadMemStats(&m)
					peak = max(peak, m.HeapInuse)
				}
				for _, name := range source.Services() {
					source.Input(name)
				}
				spent += processor() - began
				held, most = max(held, heap()-before), max(most, float64(peak)/(1<<20)-before)
				if n := len(source.Services()); n != size.services {
					b.Fatalf("%d Services", n)
				}
				runtime.KeepAlive(source)
				cancel()
				<-done
			}
			b.ReportMetric(spent.Seconds()*1000/float64(b.N), "cpu-ms/op")
			b.ReportMetric(held, "MiB-held")
			b.ReportMetric(most, "MiB-peak")
		})
	}
}

// heap is what is in use after a collection, in MiB.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// processor is what the process used of it.
func processor() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkInput is what is asked for at each publication: the input of a Service of ten endpoints, or of a thousand.
func BenchmarkInput(b *testing.B) {
	for _, endpoints := range []int{10, 1000} {
		b.Run(strconv.Itoa(endpoints), func(b *testing.B) {
			s := newStore(NodeConfig{Name: "node-1.example.internal"})
			for _, o := range []kruntime.Object{realService(1), realSlice(1, endpoints)} {
				converted, refusal := convert(o)
				if refusal != nil {
					b.Fatal(refusal)
				}
				s.apply([]object{converted}, nil, &changes{})
			}
			b.ReportAllocs()
			for b.Loop() {
				s.Input(lb.ServiceName{Namespace: "default", Name: "web-1"})
			}
		})
	}
}
