// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearlb/nearlb/pkg/watch/clientset"
)

// server is an API server that has no Service. Its certificate is httptest's: for 127.0.0.1 and example.com.
type server struct {
	*httptest.Server
	asked  atomic.Int32
	token  atomic.Value // of the last request
	answer atomic.Int32 // status, instead of the list
}

func newServer(t *testing.T) *server {
	s := &server{}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		s.token.Store(r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "application/json")
		if code := s.answer.Load(); code != 0 {
			w.WriteHeader(int(code))
		}
		fmt.Fprint(w, `{"kind": "ServiceList", "apiVersion": "v1", "items": []}`)
	}))
	t.Cleanup(s.Close)
	return s
}

// account is a directory as the kubelet makes it.
func account(t *testing.T, s *server) string {
	t.Helper()
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	for name, text := range map[string]string{"token": "secret", "ca.crt": string(ca)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func list(t *testing.T, l Login) error {
	t.Helper()
	config, err := l.config()
	if err != nil {
		t.Fatal(err)
	}
	if config.ServerName == apiServerName {
		config.ServerName = "example.com" // the one name that httptest's certificate has
	}
	client, err := clientset.For(tuned(config))
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Services("").List(context.Background(), metav1.ListOptions{})
	return err
}

func TestAPodAsksTheServersThatItIsToldWithItsOwnAccount(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	s := newServer(t)
	if err := list(t, Login{Servers: []string{strings.TrimPrefix(s.URL, "https://")}, ServiceAccount: account(t, s)}); err != nil {
		t.Fatal(err)
	}
	if got := s.token.Load(); got != "Bearer secret" {
		t.Errorf("it logged in as %v", got)
	}
}

func TestAnAddressIsHeldToTheNameThatEveryAPIServerHas(t *testing.T) {
	for want, servers := range map[string][]string{
		apiServerName: {"https://192.0.2.1:6443"}, "": {"https://api.example.com:6443"},
	} {
		config, err := Login{Servers: servers, ServiceAccount: t.TempDir()}.config()
		if err != nil || config.ServerName != want || config.Host != servers[0] {
			t.Errorf("%v: the certificate of %s is to have the name %q, want %q: %v", servers, config.Host, config.ServerName, want, err)
		}
	}
	s := newServer(t)
	config, err := Login{Servers: []string{s.URL}, ServiceAccount: account(t, s)}.config()
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientset.For(tuned(config))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Services("").List(context.Background(), metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), apiServerName) {
		t.Errorf("a certificate for other names is taken: %v", err)
	}
}

// The addresses are tried in turn from wherever the node begins; whoever answers is asked from then on.
func TestOfSeveralServersTheOneThatAnswersIsAsked(t *testing.T) {
	alive := newServer(t)
	ca := account(t, alive)
	for _, dead := range []string{"https://127.0.0.1:1", "https://[::1]:1"} {
		for _, node := range []string{"n1", "n2", "n3", "n4"} {
			if err := list(t, Login{Servers: []string{dead, alive.URL, dead}, Node: node, ServiceAccount: ca}); err != nil {
				t.Errorf("%s, node %s: %v", dead, node, err)
			}
		}
	}
	if alive.asked.Load() != 8 {
		t.Errorf("asked %d times, want 8", alive.asked.Load())
	}
}

func TestAServerThatFailsIsLeftForTheNextRequest(t *testing.T) {
	ill, well := newServer(t), newServer(t)
	ill.answer.Store(http.StatusServiceUnavailable)
	dir := account(t, ill) // httptest's servers share one certificate
	asked := func(l Login) {
		config, err := l.Config()
		if err != nil {
			t.Fatal(err)
		}
		client, err := clientset.For(config)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			_, _ = client.Services("").List(context.Background(), metav1.ListOptions{})
		}
	}
	config := Login{Kubeconfig: kubeconfig(t, dir), Servers: []string{ill.URL, well.URL}}
	for _, node := range []string{"n1", "n2", "n3"} { // who begins with either
		config.Node = node
		asked(config)
	}
	if well.asked.Load() < 6 || ill.asked.Load() > 3 {
		t.Errorf("the server that fails was asked %d times, the other %d", ill.asked.Load(), well.asked.Load())
	}
}

// That none answers is said by whoever asks, once: see outage.
func TestTheLogTellsOfAnotherServerOnceItAnswers(t *testing.T) {
	first, second := newServer(t), newServer(t)
	var log bytes.Buffer
	l := Login{Servers: []string{first.URL, second.URL}, ServiceAccount: account(t, first), Log: slog.New(slog.NewTextHandler(&log, nil))}
	config, err := l.config()
	if err != nil {
		t.Fatal(err)
	}
	config.ServerName = "example.com"
	client, err := clientset.For(tuned(config))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(when string, want int) {
		t.Helper()
		for range 5 {
			_, _ = client.Services("").List(context.Background(), metav1.ListOptions{})
		}
		if said := strings.Count(log.String(), "asking another API server"); said != want {
			t.Fatalf("%s: said %d times, want %d:\n%s", when, said, want, log.String())
		}
	}
	ill := []*server{first, second}
	if config.Host == second.URL {
		ill = []*server{second, first}
	}
	ask("all is well", 0)
	for _, s := range ill {
		s.answer.Store(http.StatusServiceUnavailable)
	}
	ask("none answers", 0)
	ill[1].answer.Store(0)
	ask("the other one answers", 1)
	ask("the other one goes on answering", 1)
}

func kubeconfig(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1", certificate-authority: %q}}], users: [{name: u, user: {token: x}}]}`, filepath.Join(dir, "ca.crt"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAddressesOfServers(t *testing.T) {
	for text, want := range map[string]string{
		"https://192.0.2.1:6443": "https://192.0.2.1:6443", "192.0.2.1:6443": "https://192.0.2.1:6443", "[2001:db8::1]:6443": "https://[2001:db8::1]:6443",
		"api.example.com": "https://api.example.com", "https://api.example.com:443/": "https://api.example.com:443", "http://127.0.0.1:8080": "http://127.0.0.1:8080",
		"": "", " ": "",
	} {
		servers, err := ParseServers([]string{text})
		got := ""
		if len(servers) > 0 {
			got = servers[0].String()
		}
		if err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"https://", "ftp://192.0.2.1", "https://192.0.2.1/api", "https://a:b@192.0.2.1", "192.0.2.1:x", "https://192.0.2.1?x"} {
		if servers, err := ParseServers([]string{text}); err == nil {
			t.Errorf("%q is %v, want an error", text, servers)
		}
	}
}
