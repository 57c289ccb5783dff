// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nearlb/nearlb/pkg/lb"
)

// addresses are compared as values.
var exactly = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got, exactly); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// load reads texts as if they came on standard input; a warning is an error of the test.
func load(t *testing.T, cfg NodeConfig, documents ...string) Source {
	t.Helper()
	source, err := Load([]string{"-"}, strings.NewReader(strings.Join(documents, "\n---\n")), cfg, func(w string) { t.Errorf("warning: %s", w) })
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func loadFixture(t *testing.T, name string, documents ...string) Source {
	t.Helper()
	path := filepath.Join("..", "..", "tests", "testdata", "objects", name)
	source, err := Load([]string{path, "-"}, strings.NewReader(strings.Join(documents, "\n---\n")), NodeConfig{}, func(w string) { t.Errorf("warning: %s", w) })
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func input(t *testing.T, source Source, namespace, name string) lb.Input {
	t.Helper()
	in, ok := source.Input(lb.ServiceName{Namespace: namespace, Name: name})
	if !ok {
		t.Fatalf("no input for %s/%s; problems: %v", namespace, name, source.Problems())
	}
	return in
}

// A3: the old form with its topology map and the new one are the same to us.
func TestASliceOfV1beta1MeansWhatItsV1FormMeans(t *testing.T) {
	service := `{apiVersion: v1, kind: Service, metadata: {name: example}, spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}]}}`
	v1 := `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: example-abc, labels: {kubernetes.io/service-name: example}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 80}]
endpoints:
- {addresses: ["10.1.2.3"], conditions: {ready: true}, hostname: pod-1, nodeName: node-1, zone: us-west2-a}`
	want := []lb.Endpoint{{
		Port: lb.PortKey{Name: "http", Protocol: lb.TCP}, Address: netip.MustParseAddrPort("10.1.2.3:80"),
		Ready: true, Serving: true, Node: "node-1", Zone: "us-west2-a", Slice: "example-abc",
	}}
	old := input(t, loadFixture(t, "example-abc.yaml", service), "default", "example")
	same(t, "v1beta1", old.Endpoints, want)
	same(t, "v1", input(t, load(t, NodeConfig{}, service, v1), "default", "example"), old)
}

// C1, C2, C3: the slice's port wins over targetPort, any node port goes, a slice made by hand serves.
func TestTheRgwServiceServesItsHandMadeSlice(t *testing.T) {
	in := input(t, loadFixture(t, "rgw.yaml"), "ceph", "rgw")
	same(t, "ports", in.Service.Ports, []lb.ServicePort{{Name: "rgw", Protocol: lb.TCP, Port: 9000, NodePort: 9000}})
	var got []string
	for _, e := range in.Endpoints {
		got = append(got, e.Address.String())
	}
	same(t, "endpoints", got, []string{"1.1.1.1:22", "1.1.1.2:22"})
	same(t, "problems", in.Problems, []lb.Problem(nil))
}

// C11: an unready endpoint, an unnamed port, no zones.
func TestTheReadinessSliceLoadsWithoutZones(t *testing.T) {
	source := loadFixture(t, "readiness.yaml",
		`{apiVersion: v1, kind: Service, metadata: {name: readiness-deployment}, spec: {clusterIP: 10.96.0.10, selector: {a: b}, ports: [{port: 80}]}}`)
	in := input(t, source, "default", "readiness-deployment")
	endpoint := func(address string, ready bool) lb.Endpoint {
		return lb.Endpoint{Port: lb.PortKey{Protocol: lb.TCP}, Address: netip.MustParseAddrPort(address), Ready: ready, Serving: ready,
			Node: "minikube", Slice: "readiness-deployment-wscv5"}
	}
	same(t, "endpoints", in.Endpoints, []lb.Endpoint{
		endpoint("10.244.0.8:8080", false), endpoint("10.244.0.6:8080", true), endpoint("10.244.0.7:8080", true)})
	if !in.Triggered.IsZero() {
		t.Errorf("triggered at %v, long before the start (C12)", in.Triggered)
	}
	same(t, "problems", in.Problems, []lb.Problem(nil))
}
