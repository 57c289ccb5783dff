// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearlb/nearlb/pkg/lb"
)

// told keeps what a NameEvents was told last of each thing.
type told struct {
	mu     sync.Mutex
	what   map[string]string
	synced int
}

func newTold() *told { return &told{what: map[string]string{}} }

func (t *told) note(what, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.what[what] = text; text == "" {
		delete(t.what, what)
	}
}

func (t *told) Set(s *lb.NamedService) {
	out := []string{fmt.Sprintf("headless=%v ips=%v external=%q ports=%v %s unserved=%v", s.Headless, s.ClusterIPs, s.ExternalName, s.Ports, s.Selection, s.Unserved)}
	for _, slice := range s.Slices {
		for i := range slice.Endpoints {
			e := slice.Endpoint(i)
			out = append(out, fmt.Sprintf("%s %v%v %s ready=%v zone=%s", slice.Name, e.Addresses, e.Targets, e.Hostname, e.Is&lb.IsReady != 0, e.Zone))
		}
	}
	t.note("service "+s.Name.String(), strings.Join(out, "; "))
}

func (t *told) Remove(n lb.ServiceName)           { t.note("service "+n.String(), "") }
func (t *told) SetNode(name, zone, region string) { t.note("node "+name, zone) }
func (t *told) SetPod(p lb.NamedPod)              { t.note("pod "+p.Name.Name, fmt.Sprint(p.Addresses)) }
func (t *told) RemovePod(n lb.PodName)            { t.note("pod "+n.Name, "") }
func (t *told) SetNamespace(name string, exists bool) {
	if text := ""; exists {
		t.note("namespace "+name, "exists")
	} else {
		t.note("namespace "+name, text)
	}
}

func (t *told) Synced() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.synced++
}

func (t *told) all() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for what, text := range t.what {
		out = append(out, what+": "+text)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

const namesManifest = `
apiVersion: v1
kind: Service
metadata: {name: db, namespace: prod, annotations: {nearlb.io/dns: prefer}}
spec: {clusterIP: None, ports: [{name: sql, port: 5432}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-a, namespace: prod, labels: {kubernetes.io/service-name: db, service.kubernetes.io/headless: ""}}
addressType: IPv4
ports: [{name: sql, port: 5432}]
endpoints: [{addresses: [10.244.1.1], hostname: db-0, zone: a}, {addresses: [10.244.1.2], conditions: {ready: false}}]
---
apiVersion: v1
kind: Namespace
metadata: {name: idle}
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, namespace: prod}
status: {podIP: 10.244.1.1, podIPs: [{ip: 10.244.1.1}, {ip: "fd00::1"}]}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: a}}
`

const moreNames = `
apiVersion: v1
kind: Service
metadata: {name: out, namespace: prod}
spec: {type: ExternalName, externalName: www.example.com.}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: f, namespace: prod, labels: {kubernetes.io/service-name: lone}}
addressType: FQDN
ports: []
endpoints: [{addresses: [db.example.com]}]
`

func TestNamesFollowTheirFiles(t *testing.T) {
	const first = "namespace idle: exists\nnode n1: a\npod db-0: [10.244.1.1 fd00::1]\n" +
		"service prod/db: headless=true ips=[] external=\"\" ports=[{sql TCP 5432}] prefer unserved=false; db-a [10.244.1.1][] db-0 ready=true zone=a; db-a [10.244.1.2][]  ready=false zone="
	const more = "\nservice prod/lone: headless=false ips=[] external=\"\" ports=[]  unserved=true; f [][db.example.com]  ready=true zone=" +
		"\nservice prod/out: headless=false ips=[] external=\"www.example.com\" ports=[]  unserved=false"
	dir, lone := t.TempDir(), filepath.Join(t.TempDir(), "lone.yaml")
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path+"~", []byte(text), 0o600), os.Rename(path+"~", path)); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, "a.yaml"), namesManifest)
	write(lone, moreNames)
	to := newTold()
	files, err := FollowNames([]string{dir, lone}, nil, slog.New(slog.DiscardHandler), to)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first+more, to.all()); diff != "" || to.synced != 1 {
		t.Fatalf("at first, synced %d: %s", to.synced, diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = files.Run(ctx) })
	defer running.Wait()
	defer cancel()
	await := func(want string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); to.all() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(cmp.Diff(want, to.all()))
			}
		}
	}
	write(lone, strings.Replace(moreNames, "www.example.com.", "other.example.com", 1))
	changed := strings.Replace(more, "www.", "other.", 1)
	await(first + changed)
	write(filepath.Join(dir, "b.yaml"), "kind: Service\n") // refused: all stays
	write(filepath.Join(dir, "c.yaml"), "apiVersion: v1\nkind: Namespace\nmetadata: {name: later}\n")
	await(strings.Replace(first, "node n1", "namespace later: exists\nnode n1", 1) + changed)
	for _, name := range []string{"a.yaml", "b.yaml", "c.yaml"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	await(strings.TrimPrefix(changed, "\n"))
}

func TestPodsThatAreOverHaveNoNames(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "p"}, Status: corev1.PodStatus{Phase: phase, PodIP: "10.1.9.9"}}
		o, err := convertNamedPod(pod)
		if err != nil || len(o.naming.pod.Addresses) > 0 != (phase == corev1.PodRunning) {
			t.Errorf("%s: %v, %v", phase, o.naming.pod.Addresses, err)
		}
	}
}

func TestNamesOfBadFilesAreRefusedAtTheStart(t *testing.T) {
	for text, want := range map[string]string{
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nstatus: {podIPs: [{ip: nonsense}]}\n": `Pod default/p: status.podIPs[0].ip: "nonsense": must be a valid IP address`,
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: a.b}\n":                             "Namespace a.b: metadata.name",
		"apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 99999}]}\n": "99999",
	} {
		path := filepath.Join(t.TempDir(), "bad.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := FollowNames([]string{path}, nil, slog.New(slog.DiscardHandler), newTold()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
