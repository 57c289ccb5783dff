// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// apiAnswers has an API server answer with what is under each path, and returns a kubeconfig for it.
func apiAnswers(t *testing.T, answers map[string]string) (kubeconfig string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		text, known := answers[r.URL.Path]
		if !known {
			w.WriteHeader(http.StatusNotFound)
			text = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`
		}
		fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c"}}],
 "clusters": [{"name": "c", "cluster": {"server": %q}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

const (
	nodesPath  = "/api/v1/nodes"
	webPath    = "/api/v1/namespaces/prod/services/web"
	slicesPath = "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices"
	webService = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "prod"},
 "spec": {"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ipFamilies": ["IPv4"], "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}}`
)

// node is one of a rack.
func node(name string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": %q, "labels": {"rack": "r1"}}}`, name)
}

// A change that was on its way is no difference: both sides are asked again.
func TestAChangeThatWasOnItsWayIsNoDifference(t *testing.T) {
	s, asked := sound(), 0
	again := func() error {
		asked++
		s.backends = []maps.BackendRow{{Service: "prod/web", Port: "http", Protocol: "TCP", Address: s.news.Endpoints[0].Address.Addr(), BackendPort: 8080, Lists: []string{"cluster"}}}
		return nil
	}
	if err := s.askAPI(t.Context(), apiAnswers(t, map[string]string{webPath: webService, slicesPath: webSlices("10.244.1.2")}), again); err != nil {
		t.Fatal(err)
	}
	if first := diagnose(s).Causes[0]; asked != 1 || first.What != "nothing-wrong" {
		t.Errorf("asked again %d times: %+v", asked, first)
	}
}

// webSlices are a list with one slice of ready endpoints.
func webSlices(addresses ...string) string {
	var endpoints []string
	for _, a := range addresses {
		endpoints = append(endpoints, fmt.Sprintf(`{"addresses": [%q], "conditions": {"ready": true}, "nodeName": "n1"}`, a))
	}
	return `{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList", "items": [{"metadata": {"name": "web-1", "namespace": "prod",
 "labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "endpoints": [` +
		strings.Join(endpoints, ",") + `]}]}`
}

func TestWhatDiffersFromTheAPIIsNamedFirst(t *testing.T) {
	for name, in := range map[string]struct {
		answers map[string]string
		change  func(*seen)
		want    string   // the first cause
		texts   []string // in it
	}{
		"the same": {map[string]string{webPath: webService, slicesPath: webSlices("10.244.1.2")}, func(*seen) {}, "nothing-wrong", nil},
		"an endpoint that is unknown here": {map[string]string{webPath: webService, slicesPath: webSlices("10.244.1.2", "10.244.1.3")}, func(*seen) {},
			"differs-from-api", []string{"10.244.1.3:8080/TCP is in (all) in the API and absent here"}},
		"an endpoint that is gone": {map[string]string{webPath: webService, slicesPath: webSlices()}, func(*seen) {},
			"differs-from-api", []string{"10.244.1.2:8080/TCP is absent in the API and in (all) here"}},
		"a Service that is gone": {map[string]string{slicesPath: webSlices("10.244.1.2")}, func(*seen) {},
			"differs-from-api", []string{"10.244.1.2:8080/TCP is absent in the API"}},
		"a Service that is unknown here": {map[string]string{webPath: webService, slicesPath: webSlices()}, func(s *seen) {
			s.frontends, s.tries, s.news = nil, nil, agent.ServiceNews{}
		}, "differs-from-api", []string{"no address of it is in force here"}},
		"no Service anywhere": {map[string]string{slicesPath: `{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList", "items": []}`}, func(s *seen) {
			s.frontends, s.tries, s.news = nil, nil, agent.ServiceNews{}
		}, "no-such-service", nil},
		"a Service of another proxy": {map[string]string{
			webPath:    strings.Replace(webService, `"namespace": "prod"`, `"namespace": "prod", "labels": {"service.kubernetes.io/service-proxy-name": "nearlb"}`, 1),
			slicesPath: webSlices("10.244.1.2")}, func(s *seen) { s.frontends, s.tries, s.news = nil, nil, agent.ServiceNews{} }, "no-such-service", nil},
		"a Service of this proxy": {map[string]string{
			webPath:    strings.Replace(webService, `"namespace": "prod"`, `"namespace": "prod", "labels": {"service.kubernetes.io/service-proxy-name": "nearlb"}`, 1),
			slicesPath: webSlices("10.244.1.2")}, func(s *seen) { s.status.Proxy = "nearlb" }, "nothing-wrong", nil},
		"endpoints that depend on other Nodes": {map[string]string{
			webPath:    strings.Replace(webService, `"namespace": "prod"`, `"namespace": "prod", "annotations": {"nearlb.io/topology-keys": "rack"}`, 1),
			slicesPath: strings.Replace(webSlices("10.244.1.2"), `"n1"`, `"n2"`, 1), nodesPath + "/n1": node("n1"),
			nodesPath: `{"apiVersion": "v1", "kind": "NodeList", "items": [` + node("n1") + "," + node("n2") + "]}"}, func(*seen) {}, "nothing-wrong", nil},
		"another port than the one that is asked for": {map[string]string{webPath: webService, slicesPath: webSlices("10.244.1.2", "10.244.1.3")}, func(s *seen) { s.port = "other" },
			"unknown-port", nil},
		"an API server that answers nothing of use": {map[string]string{webPath: webService}, func(*seen) {}, "api-not-asked", []string{"EndpointSlices of Service prod/web"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := sound()
			s.backends = []maps.BackendRow{{Service: "prod/web", Port: "http", Protocol: "TCP", Address: s.news.Endpoints[0].Address.Addr(), BackendPort: 8080, State: string(lb.ReasonAll), Lists: []string{"cluster"}}}
			in.change(s)
			if len(s.frontends) == 0 {
				s.backends = nil
			}
			if err := s.askAPI(t.Context(), apiAnswers(t, in.answers), func() error { return nil }); err != nil {
				t.Fatal(err)
			}
			first := diagnose(s).Causes[0]
			if first.What != in.want || slices.ContainsFunc(in.texts, func(text string) bool { return !strings.Contains(first.Text, text) }) {
				t.Errorf("want %s with %q, got %+v", in.want, in.texts, first)
			}
		})
	}
}

func TestABadKubeconfigIsBadUsage(t *testing.T) {
	err := sound().askAPI(t.Context(), filepath.Join(t.TempDir(), "missing"), nil)
	if _, usage := err.(command.UsageError); !usage {
		t.Errorf("%v", err)
	}
}
