// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// Options of a server. The zero value is a current one that serves all kinds.
type Options struct {
	Without        []string      // kinds that are not served, as servicecidrs before Kubernetes 1.33
	NoStreams      bool          // lists cannot be streamed by a watch, as before Kubernetes 1.32
	BookmarksEvery time.Duration // 0: a minute, as kube-apiserver
	History        int           // changes of each kind that can be watched from; 0: 100,000
}

// Server answers requests. Its methods may be called from several goroutines.
type Server struct {
	options Options
	store
	pages    map[string]pages // lists that go on, by the key of their token
	requests atomic.Int64
	events   atomic.Int64
}

// New makes a server without objects.
func New(o Options) *Server {
	o.BookmarksEvery = cmp.Or(o.BookmarksEvery, time.Minute)
	s := &Server{options: o, store: store{version: 1000, tables: map[string]*table{}, history: cmp.Or(o.History, 100_000)}, pages: map[string]pages{}}
	for _, k := range kinds {
		if !slices.Contains(o.Without, k.name) {
			s.tables[k.base()+"/"+k.name] = newTable(k)
		}
	}
	return s
}

// Requests is how many requests came, watches included.
func (s *Server) Requests() int64 { return s.requests.Load() }

// Events is how many Events clients made.
func (s *Server) Events() int64 { return s.events.Load() }

// ServeHTTP is http.Handler's.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	path := strings.TrimSuffix(r.URL.Path, "/")
	switch {
	case path == "/healthz" || path == "/readyz" || path == "/livez":
		_, _ = io.WriteString(w, "ok") // the client went away
	case path == "/version":
		answer(w, http.StatusOK, runtimeVersion)
	case r.Method == http.MethodPost && strings.HasSuffix(path, "/events"):
		s.takeEvent(w, r)
	case r.Method != http.MethodGet:
		fail(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "objects are changed by the test alone")
	default:
		s.read(w, r, path)
	}
}

var runtimeVersion = map[string]string{"major": "1", "minor": "36", "gitVersion": "v1.36.0", "platform": "linux/amd64"}

// takeEvent answers as if the Event, of either API, were kept.
func (s *Server) takeEvent(w http.ResponseWriter, r *http.Request) {
	s.events.Add(1)
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body) // the client went away
}

// read answers a list, a watch, or a request for one object.
func (s *Server) read(w http.ResponseWriter, r *http.Request, path string) {
	t, namespace, name := s.find(path)
	if t == nil {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
		return
	}
	e, ok := negotiate(r.Header.Get("Accept"))
	if !ok {
		fail(w, http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "only JSON and protobuf, whole or as PartialObjectMetadata, are served")
		return
	}
	if name != "" {
		s.get(w, t, e, strings.TrimPrefix(namespace+"/"+name, "/"))
		return
	}
	q := r.URL.Query()
	chosen, err := choose(namespace, q.Get("labelSelector"), q.Get("fieldSelector"))
	if err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	if q.Get("watch") == "true" || q.Get("watch") == "1" {
		s.watch(w, r, t, e, chosen)
		return
	}
	s.list(w, r, t, e, chosen)
}

// find takes a path apart: BASE/KIND, BASE/KIND/NAME, BASE/namespaces/NAMESPACE/KIND, BASE/namespaces/NAMESPACE/KIND/NAME.
func (s *Server) find(path string) (t *table, namespace, name string) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	head := 2 // api/v1
	if parts[0] == "apis" {
		head = 3
	}
	if len(parts) <= head {
		return nil, "", ""
	}
	base, rest := "/"+strings.Join(parts[:head], "/"), parts[head:]
	if len(rest) > 2 && rest[0] == "namespaces" {
		namespace, rest = rest[1], rest[2:]
	}
	t = s.tables[base+"/"+rest[0]]
	if len(rest) > 2 || t == nil || namespace != "" && !t.namespaced {
		return nil, "", ""
	}
	if len(rest) == 2 {
		name = rest[1]
	}
	return t, namespace, name
}

func choose(namespace, byLabels, byFields string) (selection, error) {
	l, err := labels.Parse(byLabels)
	if err != nil {
		return selection{}, err
	}
	f, err := fields.ParseSelector(byFields)
	return selection{namespace: namespace, labels: l, fields: f}, err
}

func (s *Server) get(w http.ResponseWriter, t *table, e encoding, key string) {
	s.mu.RLock()
	o := t.objects[key]
	s.mu.RUnlock()
	if o == nil {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, t.name+" "+key+" not found")
		return
	}
	body, err := e.object(t.kind, o)
	write(w, e, body, err)
}

func write(w http.ResponseWriter, e encoding, body []byte, err error) {
	if err != nil {
		fail(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
		return
	}
	w.Header().Set("Content-Type", e.contentType(false))
	_, _ = w.Write(body) // the client went away
}

// fail answers with a Status.
func fail(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	answer(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: message,
	})
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client went away
}
