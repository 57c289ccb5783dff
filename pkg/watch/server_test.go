// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/nearlb/nearlb/pkg/watch/clientset"
	"github.com/nearlb/nearlb/pkg/watch/kube"
)

// The paths of what is read.
const (
	servicesPath = "/api/v1/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/endpointslices"
	nodesPath    = "/api/v1/nodes"
)

// apiServer speaks as much of the Kubernetes API as a reader needs, over real connections. It has no ServiceCIDRs.
type apiServer struct {
	streams bool // lists can be streamed by a watch, as since Kubernetes 1.32

	mu        sync.Mutex
	version   int
	compacted int // watches from before are refused
	objects   map[string][]any
	events    map[string][]chan metav1.WatchEvent
	listed    map[string]bool // paths that were asked for a plain list
	token     string          // that requests must have; "": none
}

func newAPIServer(streams bool) *apiServer {
	return &apiServer{streams: streams, objects: map[string][]any{}, events: map[string][]chan metav1.WatchEvent{}, listed: map[string]bool{}}
}

func typed(o any, version int) any {
	switch o := o.(type) {
	case *corev1.Service:
		o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	case *discoveryv1.EndpointSlice:
		o.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
	case *corev1.Node:
		o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	}
	o.(metav1.Object).SetResourceVersion(strconv.Itoa(version))
	return o
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kinds := map[string]metav1.TypeMeta{
		servicesPath: {APIVersion: "v1", Kind: "Service"}, nodesPath: {APIVersion: "v1", Kind: "Node"},
		slicesPath: {APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
	}
	kind, known := kinds[r.URL.Path]
	query := r.URL.Query()
	s.mu.Lock()
	welcome := s.token == "" || r.Header.Get("Authorization") == "Bearer "+s.token
	s.mu.Unlock()
	streamed := query.Get("sendInitialEvents") == "true"
	w.Header().Set("Content-Type", "application/json")
	switch {
	case !welcome:
		refuseRequest(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	case !known:
		refuseRequest(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case query.Get("watch") == "":
		s.list(w, r.URL.Path, kind)
	case streamed && !s.streams:
		refuseRequest(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	default:
		s.watch(w, r, kind, streamed)
	}
}

func refuseRequest(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code)})
}

func (s *apiServer) list(w http.ResponseWriter, path string, kind metav1.TypeMeta) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed[path] = true
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": kind.APIVersion, "kind": kind.Kind + "List",
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)}, "items": s.objects[path]})
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, kind metav1.TypeMeta, streamed bool) {
	events := make(chan metav1.WatchEvent, 100)
	s.mu.Lock()
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if from < s.compacted && !streamed {
		events <- tooOld()
	}
	for _, o := range s.objects[r.URL.Path] {
		if version, _ := strconv.Atoi(o.(metav1.Object).GetResourceVersion()); streamed || version > from {
			events <- event("ADDED", o)
		}
	}
	if streamed {
		events <- event("BOOKMARK", map[string]any{"apiVersion": kind.APIVersion, "kind": kind.Kind, "metadata": map[string]any{
			"resourceVersion": strconv.Itoa(s.version), "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"}}})
	}
	s.events[r.URL.Path] = append(s.events[r.URL.Path], events)
	s.mu.Unlock()
	encoder := json.NewEncoder(w)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			_ = encoder.Encode(e)
			w.(http.Flusher).Flush()
		}
	}
}

func tooOld() metav1.WatchEvent {
	return event("ERROR", metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone, Message: "too old resource version"})
}

func event(kind string, o any) metav1.WatchEvent {
	text, _ := json.Marshal(o)
	e := metav1.WatchEvent{Type: kind}
	e.Object.Raw = text
	return e
}

// add keeps an object for lists and tells the watches of it.
func (s *apiServer) add(path string, o any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.objects[path] = append(s.objects[path], typed(o, s.version))
	s.send(path, event("ADDED", o))
}

// set adds or replaces an object. Without tell, watches are not told.
func (s *apiServer) set(path string, o metav1.Object, tell bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(path, o.GetName())
	s.version++
	s.objects[path] = append(s.objects[path], typed(o, s.version))
	if tell {
		s.send(path, event("MODIFIED", o))
	}
}

func (s *apiServer) drop(path, name string) {
	s.objects[path] = slices.DeleteFunc(s.objects[path], func(o any) bool { return o.(metav1.Object).GetName() == name })
}

// tell sends an event as it is to the watches, whatever the objects are.
func (s *apiServer) tell(path, kind string, o any, version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(path, event(kind, typed(o, version)))
}

func (s *apiServer) send(path string, e metav1.WatchEvent) {
	for _, events := range s.events[path] {
		events <- e
	}
}

// restore makes it a server of an earlier version, in which an object was as here.
func (s *apiServer) restore(version int, path string, o metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
	s.drop(path, o.GetName())
	s.objects[path] = append(s.objects[path], typed(o, version-1))
}

// lose makes it a server that begins anew: at this version, without these objects.
func (s *apiServer) lose(version int, paths ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
	for _, path := range paths {
		s.objects[path] = nil
	}
}

// compact forgets the history.
func (s *apiServer) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version += 10
	s.compacted = s.version
}

// expire forgets the history, and ends the watches by saying so.
func (s *apiServer) expire() {
	s.compact()
	s.mu.Lock()
	defer s.mu.Unlock()
	for path := range s.events {
		s.send(path, tooOld())
	}
}

// whole reads objects whole alone.
type whole struct{ kube.Client }

func (whole) Metadata(schema.GroupVersionResource) kube.Lists[*metav1.PartialObjectMetadataList] {
	return nil
}

// read runs a source over the server, over HTTP/1.1, and waits for its first lists.
func (s *apiServer) read(t *testing.T, cfg NodeConfig) (server *httptest.Server, source Source, r *recorder) {
	t.Helper()
	server = httptest.NewServer(s)
	t.Cleanup(server.Close)
	client, err := clientset.For(&rest.Config{Host: server.URL, QPS: -1})
	must(t, err)
	r = newRecorder()
	source = Kubernetes(whole{client}, cfg, slog.New(r))
	t.Cleanup(server.CloseClientConnections)
	r.run(t, source)
	r.until(t, "the first list", func() bool { return r.synced() > 0 })
	return server, source, r
}

// The ways in which servers give their first list, old and new.
func TestTheAPIServerIsReadOverHTTP(t *testing.T) {
	for name, streams := range map[string]bool{"streamed list": true, "plain list": false} {
		t.Run(name, func(t *testing.T) {
			api := newAPIServer(streams)
			api.add(servicesPath, apiService("web"))
			api.add(slicesPath, apiSlice("web-a", "web", "10.1.0.1"))
			api.add(nodesPath, apiNode("n1", "a"))
			server, source, r := api.read(t, NodeConfig{Name: "n1", ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}})
			same(t, "services", names(source), "default/web")
			same(t, "endpoints", endpointsOf(source, "web"), 1)
			same(t, "zone", source.Node().Zone, "a")
			api.mu.Lock()
			same(t, "plain list", api.listed[servicesPath], !streams)
			api.mu.Unlock()

			api.add(slicesPath, apiSlice("web-b", "web", "10.1.0.2", "10.1.0.3"))
			r.until(t, "an event", func() bool { return endpointsOf(source, "web") == 3 && r.changed("web") == 1 })
			// Once every watch has told of something no request is on its way: one that the end of the connection met would be an outage.
			api.add(servicesPath, apiService("soon"))
			api.set(nodesPath, apiNode("n1", "b"), true)
			r.until(t, "an event of each watch", func() bool {
				return endpointsOf(source, "soon") == 0 && source.Node().Zone == "b" && r.nodeChanges() > 0
			})

			server.CloseClientConnections()
			api.add(servicesPath, apiService("late"))
			r.until(t, "what came after the connection broke", func() bool { return endpointsOf(source, "late") == 0 })
			same(t, "web meanwhile", endpointsOf(source, "web"), 3)
			same(t, "outages said", r.logged("from the API server"), 0)
		})
	}
}

// Servers before Kubernetes 1.33 answer that there is nothing of the kind.
func TestAServerWithoutServiceCIDRsIsReadOverHTTP(t *testing.T) {
	api := newAPIServer(true)
	api.add(servicesPath, apiService("web"))
	_, source, r := api.read(t, NodeConfig{Name: "n1"})
	same(t, "services", names(source), "default/web")
	same(t, "outages said", r.logged("from the API server"), 0)
}
