// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// standIn is a stand-in for an API server with kubelets behind it: it lists some pods and nodes, and speaks the exec protocol by
// WebSocket (v5.channel.k8s.io), or by SPDY alone (v4.channel.k8s.io) as older servers and some proxies do. Real servers are not asked
// in these tests.
type standIn struct {
	t       *testing.T
	nodes   []string
	pods    []map[string]any
	spdy    bool
	mu      sync.Mutex
	asked   []string // "n1: nearlb services -o jsonl"
	program func(node string, command []string, out, errs io.Writer) int
}

func podOn(node, name, phase string, running bool) map[string]any {
	state := map[string]any{"waiting": map[string]any{"reason": "CrashLoopBackOff"}}
	if running {
		state = map[string]any{"running": map[string]any{}}
	}
	return map[string]any{"metadata": map[string]any{"name": name, "namespace": "kube-system"}, "spec": map[string]any{"nodeName": node},
		"status": map[string]any{"phase": phase, "podIP": "10.244.1.7", "containerStatuses": []any{map[string]any{"name": "agent", "state": state}}}}
}

// newStandIn has an agent on each node.
func newStandIn(t *testing.T, nodes ...string) *standIn {
	s := &standIn{t: t, nodes: nodes}
	for _, n := range nodes {
		s.pods = append(s.pods, podOn(n, "nearlb-"+n, "Running", true))
	}
	return s
}

// connect serves until the test ends.
func (s *standIn) connect(*request) (*cluster, error) {
	server := httptest.NewServer(s)
	s.t.Cleanup(server.Close)
	return newCluster(&rest.Config{Host: server.URL}, "shop")
}

func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(items any, more string) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"continue": more}, "items": items})
	}
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/exec"):
		s.exec(w, r)
	case path == "/api/v1/namespaces/kube-system/pods" && r.URL.Query().Get("labelSelector") == "app.kubernetes.io/name=nearlb":
		if half := len(s.pods) / 2; r.URL.Query().Get("continue") == "" && half > 0 {
			answer(s.pods[:half], "2") // pages
		} else {
			answer(s.pods[half:], "")
		}
	case strings.HasSuffix(path, "/log"):
		if r.URL.Query().Get("previous") == "true" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "log of %s\n", strings.Split(path, "/")[6])
	case path == "/api/v1/nodes":
		var nodes []any
		for _, n := range s.nodes {
			nodes = append(nodes, map[string]any{"metadata": map[string]any{"name": n}})
		}
		answer(nodes, "")
	case path == "/api/v1/namespaces/shop/pods/cart-0":
		_ = json.NewEncoder(w).Encode(podOn("n2", "cart-0", "Running", true))
	case path == "/api/v1/pods" && r.URL.Query().Get("fieldSelector") == "status.podIP=10.244.1.7":
		answer([]any{podOn("n2", "cart-0", "Running", true)}, "")
	case strings.HasSuffix(path, "pods"):
		answer([]any{}, "")
	default:
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "message": path + " is not there"})
	}
}

// runs has pods run another program from now on; connections that broke may not have ended yet.
func (s *standIn) runs(program func(node string, command []string, out, errs io.Writer) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.program = program
}

func (s *standIn) exec(w http.ResponseWriter, r *http.Request) {
	name := strings.Split(r.URL.Path, "/")[6]
	at := slices.IndexFunc(s.pods, func(p map[string]any) bool { return p["metadata"].(map[string]any)["name"] == name })
	node := s.pods[at]["spec"].(map[string]any)["nodeName"].(string)
	command := r.URL.Query()["command"]
	if websocket.IsWebSocketUpgrade(r) == s.spdy {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.asked = append(s.asked, node+": "+strings.Join(command, " "))
	program := s.program
	s.mu.Unlock()
	if s.spdy {
		s.bySPDY(w, r, node, command)
		return
	}
	upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	status := program(node, command[1:], channel{conn, 1}, channel{conn, 2})
	if status < 0 {
		return // the connection breaks
	}
	_, _ = channel{conn, 3}.Write(statusText(status))
	_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
}

// channel is one stream of a WebSocket: the first byte of each message is its number.
type channel struct {
	conn   *websocket.Conn
	number byte
}

func (c channel) Write(text []byte) (int, error) {
	return len(text), c.conn.WriteMessage(websocket.BinaryMessage, append([]byte{c.number}, text...))
}

func statusText(status int) []byte {
	if status == 0 {
		return []byte(`{"metadata":{},"status":"Success"}`)
	}
	return fmt.Appendf(nil, `{"metadata":{},"status":"Failure","reason":"NonZeroExitCode","message":"command terminated with non-zero exit code","details":{"causes":[{"reason":"ExitCode","message":"%d"}]}}`, status)
}

func (s *standIn) bySPDY(w http.ResponseWriter, r *http.Request, node string, command []string) {
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 3)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, replied <-chan struct{}) error {
		streams <- stream
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	all := map[string]httpstream.Stream{}
	for range 3 {
		stream := <-streams
		all[stream.Headers().Get("streamType")] = stream
	}
	status := s.program(node, command[1:], all["stdout"], all["stderr"])
	_, _ = all["error"].Write(statusText(status))
	for _, stream := range all {
		_ = stream.Close()
	}
	<-conn.CloseChan()
}
