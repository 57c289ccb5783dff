// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/nearlb/nearlb/pkg/lb"
)

// fromServer is the Service web as the converter takes it from an API server; the spec is in YAML's flow form.
func fromServer(t *testing.T, spec string) *service {
	t.Helper()
	svc := &corev1.Service{}
	must(t, yaml.Unmarshal([]byte("{metadata: {name: web, namespace: default}, spec: {clusterIP: 10.96.0.10, "+spec+"}}"), svc))
	o, refusal := convert(svc)
	if refusal != nil || o.service == nil {
		t.Fatalf("{%s}: not served: %v", spec, refusal)
	}
	return o.service
}

func problemsOf(problems []lb.Problem) string {
	var out []string
	for _, p := range problems {
		out = append(out, p.Field+" "+p.Message)
	}
	return strings.Join(out, "; ")
}

// A server may be newer than the agent: what it accepted is served as well as can be, and what cannot be is a problem that names it.
func TestAServiceThatTheServerAcceptedIsServedThoughAValueIsUnknown(t *testing.T) {
	web := lb.Service{Name: lb.ServiceName{Namespace: "default", Name: "web"}, Type: lb.TypeClusterIP, ClusterIPs: ips("10.96.0.10"),
		Ports: []lb.ServicePort{{Protocol: lb.TCP, Port: 80}}, Internal: lb.PolicyCluster, External: lb.PolicyCluster}
	for _, row := range []struct {
		spec    string
		change  func(*lb.Service)
		problem string // of one problem the beginning; "" none
	}{
		{"ports: [{port: 80}]", func(*lb.Service) {}, ""},
		{"ports: [{port: 80}], trafficDistribution: PreferSameRack", func(s *lb.Service) { s.WantsHints = true }, `spec.trafficDistribution "PreferSameRack": is not known here`},
		{"ports: [{port: 80}], internalTrafficPolicy: Nearest", func(*lb.Service) {}, `spec.internalTrafficPolicy "Nearest": is not known here; Cluster is in its place`},
		{"ports: [{port: 80, nodePort: 30080}], type: NodePort, externalTrafficPolicy: Near", func(s *lb.Service) { s.Type, s.Ports[0].NodePort = lb.TypeNodePort, 30080 },
			`spec.externalTrafficPolicy "Near": is not known here; Cluster is in its place`},
		{"ports: [{port: 80}], type: Gateway", func(*lb.Service) {}, `spec.type "Gateway": is not known here; ClusterIP is in its place`},
		{"ports: [{port: 80}], sessionAffinity: Cookie", func(*lb.Service) {}, `spec.sessionAffinity "Cookie": is not known here; None is in its place`},
		{"ports: [{port: 80}], sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 100000}}", func(s *lb.Service) { s.Affinity = 3 * time.Hour },
			"spec.sessionAffinityConfig.clientIP.timeoutSeconds 100000: must be between 1 and 86400; 10800 is in its place"},
		{"ports: [{port: 80}], sessionAffinity: ClientIP", func(s *lb.Service) { s.Affinity = 3 * time.Hour }, ""},
		{"ports: [{name: a, port: 80}, {name: q, port: 80, protocol: QUIC}]", func(s *lb.Service) { s.Ports[0].Name = "a" }, `spec.ports[1].protocol "QUIC": is not known here`},
		{"ports: [{name: a, port: 80}, {name: b, port: 65536}]", func(s *lb.Service) { s.Ports[0].Name = "a" }, "spec.ports[1].port 65536: must be between"},
		{"ports: [{name: a, port: 80}, {name: b, port: -1}]", func(s *lb.Service) { s.Ports[0].Name = "a" }, "spec.ports[1].port -1: must be between"},
		{"ports: [{name: a, port: 80}, {name: a, port: 81}]", func(s *lb.Service) { s.Ports[0].Name = "a" }, `spec.ports[1].name "a": another port has the same name`},
		{"ports: [{name: a, port: 80}, {name: b, port: 80}]", func(s *lb.Service) { s.Ports[0].Name = "a" }, `spec.ports[1].port "b": another port has the same number`},
		{`ports: [{name: a, port: 80}, {name: "\e[31m", port: 81}]`, func(s *lb.Service) { s.Ports[0].Name = "a" }, `spec.ports[1].name "\x1b[31m": is no name of a port`},
		{"ports: []", func(s *lb.Service) { s.Ports = nil }, ""},
		{"ports: [{port: 80, nodePort: 70000}], type: LoadBalancer", func(s *lb.Service) { s.Type = lb.TypeLoadBalancer }, "spec.ports[0].nodePort 70000: must be between"},
		{"ports: [{port: 80}], healthCheckNodePort: 70000", func(*lb.Service) {}, "spec.healthCheckNodePort 70000: must be between"},
		{"ports: [{port: 80, targetPort: 70000, appProtocol: '?'}], ipFamilies: [IPX], ipFamilyPolicy: Some, selector: {'a b': c}", func(*lb.Service) {}, ""},
		{"ports: [{port: 80}], clusterIPs: [10.96.0.10, 'fd00::10', 10.96.0.11]", func(s *lb.Service) { s.ClusterIPs = ips("10.96.0.10", "fd00::10") }, `spec.clusterIPs[2] "10.96.0.11": is the second of its family`},
		{"ports: [{port: 80}], clusterIPs: ['', 'fd00::10%eth0']", func(s *lb.Service) { s.ClusterIPs = nil }, "spec.clusterIPs[0]"},
		{"ports: [{port: 80}], externalIPs: [x, 127.0.0.1, 198.51.100.1]", func(s *lb.Service) { s.ExternalIPs = ips("198.51.100.1") }, "spec.externalIPs[0]"},
	} {
		want := web
		want.Ports = slices.Clone(web.Ports)
		row.change(&want)
		svc := fromServer(t, row.spec+", selector: {a: b}")
		same(t, row.spec, svc.full(), want)
		got := problemsOf(svc.more().problems)
		if !strings.HasPrefix(got, row.problem) || row.problem == "" && got != "" {
			t.Errorf("{%s}: problems are %s; want %s", row.spec, got, row.problem)
		}
	}
}

// A range that cannot be read admits nobody: left out alone, it would let everybody in.
func TestASourceRangeThatCannotBeReadAdmitsNobody(t *testing.T) {
	svc := fromServer(t, "type: LoadBalancer, ports: [{port: 80}], loadBalancerSourceRanges: [10.0.0.0/33]")
	same(t, "ranges", svc.full().SourceRanges, nobody[:])
	same(t, "problem", problemsOf(svc.more().problems), `spec.loadBalancerSourceRanges[0] "10.0.0.0/33": must be a valid CIDR; it admits nobody`)
	svc = fromServer(t, "type: LoadBalancer, ports: [{port: 80}], loadBalancerSourceRanges: [10.0.0.0/8, x]")
	same(t, "ranges", svc.full().SourceRanges, []netip.Prefix{nobody[0], netip.MustParsePrefix("10.0.0.0/8"), nobody[1]})
}

func TestAnIngressOfTheServerThatCannotBeServedIsLeftOut(t *testing.T) {
	svc := &corev1.Service{}
	must(t, yaml.Unmarshal([]byte(`{metadata: {name: web, namespace: default}, spec: {type: LoadBalancer, ports: [{port: 80}]}, status: {loadBalancer: {ingress: [
		{ip: x}, {ip: 203.0.113.1, ipMode: Tunnel}, {ip: 203.0.113.2, ipMode: Proxy}, {ip: 127.0.0.1}, {hostname: a.example}, {ip: 203.0.113.3, ipMode: VIP}, {ipMode: VIP}]}}}`), svc))
	o, refusal := convert(svc)
	if refusal != nil {
		t.Fatal(refusal)
	}
	same(t, "addresses", o.service.full().LoadBalancerIPs, ips("203.0.113.3"))
	same(t, "problems", len(o.service.more().problems), 3)
}

// Each port and each endpoint counts for itself.
func TestASliceOfTheServerLosesOnlyWhatCannotBeServed(t *testing.T) {
	in := &discoveryv1.EndpointSlice{}
	must(t, yaml.Unmarshal([]byte(`
metadata: {name: web-a, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: a, port: 80}, {name: q, port: 80, protocol: QUIC}, {name: z, port: 70000}, {name: a, port: 81}, {name: "\e", port: 82}, {name: a, port: 53, protocol: UDP}, {}]
endpoints:
- {addresses: [10.1.0.1], nodeName: n1, zone: a, hostname: "not a name", hints: {forZones: [{name: b}, {name: a}, {name: "\e"}], forNodes: [{name: n1}]}}
- {addresses: []}
- {addresses: ["fd00::1"]}
- {addresses: [127.0.0.1]}
- {addresses: [10.1.0.2], nodeName: "N\n", zone: "\e"}
`), in))
	o, refusal := convert(in)
	if refusal != nil {
		t.Fatal(refusal)
	}
	s := newStore(NodeConfig{Name: "n1"})
	service := &service{name: lb.ServiceName{Namespace: "default", Name: "web"}}
	s.apply([]object{o, {key: objectKey{kindService, "default", "web"}, service: service}}, nil, &changes{})
	got, _ := s.Input(service.name)
	var endpoints []string
	for _, e := range got.Endpoints {
		endpoints = append(endpoints, e.Port.String()+" "+brief(e))
	}
	same(t, "endpoints", endpoints, []string{"a/TCP 10.1.0.1:80 rs/n1/a//n1/a+b", "a/UDP 10.1.0.1:53 rs/n1/a//n1/a+b", "a/TCP 10.1.0.2:80 rs/////", "a/UDP 10.1.0.2:53 rs/////"})
	var fields []string
	for _, p := range got.Problems {
		fields = append(fields, p.Field)
	}
	same(t, "problems", fields, []string{"endpoints[0].hints.forZones", "endpoints[1].addresses", "endpoints[2].addresses[0]", "endpoints[3].addresses[0]",
		"endpoints[4].nodeName", "endpoints[4].zone", "ports[1].protocol", "ports[2].port", "ports[3].name", "ports[4].name", "ports[6].port"})

	in.AddressType = "IPv9"
	o, _ = convert(in)
	same(t, "endpoints of an unknown type of address", len(o.slice.endpoints), 0)
	same(t, "its problem", problemsOf(o.slice.problems), `addressType "IPv9": is not known here: these endpoints are not served`)
}

// Only a name that is none refuses an object of the server: it is what all else is known by.
func TestAnObjectOfTheServerWithoutAUsableNameIsRefused(t *testing.T) {
	withAPI(t, nil, func(a *api) {
		a.setService(apiService("web", withPort(-7)))
		a.told("web")
		in := input(t, a.source, "default", "web")
		same(t, "ports", len(in.Service.Ports), 0)
		same(t, "problems", problemsOf(in.Problems), "spec.ports[0].port -7: must be between 1 and 65535; this port is not served")
		a.setService(apiService("Web_1"))
		a.told("")
		same(t, "problems", a.source.Problems(), []lb.Problem{{Object: "Service default/Web_1", Field: "metadata.name", Message: `"Web_1": is no name of a Service`}})
		same(t, "said", a.logged("object is refused"), 1)
		must(t, a.client.CoreV1().Services("default").Delete(t.Context(), "Web_1", metav1.DeleteOptions{}))
		synctest.Wait()
		same(t, "problems", a.source.Problems(), []lb.Problem(nil))
	}, apiService("web"))
}

// FuzzConvert takes any object as an API server might send it: nothing panics, and what comes of it is sound.
func FuzzConvert(f *testing.F) {
	for _, o := range []runtime.Object{realService(1), realSlice(1, 2), apiNode("n1", "a"), keyedService("web", "rack,*"), ofIPv6(apiSlice("web-a", "web", "fd00::1"))} {
		text, err := json.Marshal(o)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"metadata": {"name": "web", "namespace": "default"}, "spec": {"type": "LoadBalancer", "ports": [{"port": -1}, {"port": 1, "nodePort": 70000}], "sessionAffinity": "ClientIP",
		"loadBalancerSourceRanges": ["x"], "externalIPs": ["1.2.3.4", "::"], "clusterIPs": ["None"]}, "status": {"loadBalancer": {"ingress": [{"ip": "1", "ipMode": "x"}]}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := newStore(NodeConfig{Name: "n1"})
		for _, o := range []runtime.Object{&corev1.Service{}, &discoveryv1.EndpointSlice{}, &corev1.Node{}} {
			if yaml.Unmarshal(text, o) != nil {
				continue
			}
			if converted, refusal := convert(o); refusal == nil {
				s.apply([]object{converted}, nil, &changes{})
			}
		}
		sound(t, loaded{s}, 0)
		for _, name := range s.Services() {
			in, _ := s.Input(name)
			for _, text := range []string{name.Namespace, name.Name, fmt.Sprint(in.Service.Ports), fmt.Sprint(in.Endpoints), fmt.Sprint(in.Problems)} {
				if strings.ContainsFunc(text, unicode.IsControl) {
					t.Errorf("control characters reach people: %q", text)
				}
			}
		}
	})
}
