// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// withSpec is a Service in one line: the spec is in YAML's flow form, without the outer braces.
func withSpec(spec string) string {
	return "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {" + spec + "}}"
}

func TestAServiceGetsTheDefaultsOfTheAPIServer(t *testing.T) {
	in := input(t, load(t, NodeConfig{}, withSpec("clusterIP: 10.96.0.10, selector: {a: b}, ports: [{port: 80}]")), "default", "web")
	same(t, "input", in, lb.Input{Service: lb.Service{
		Name: lb.ServiceName{Namespace: "default", Name: "web"}, Type: lb.TypeClusterIP,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []lb.ServicePort{{Protocol: lb.TCP, Port: 80}},
		Internal:   lb.PolicyCluster, External: lb.PolicyCluster,
	}})
}

func TestEveryFieldOfAServiceThatDecidesIsRead(t *testing.T) {
	in := input(t, load(t, NodeConfig{}, `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00::10"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  externalIPs: [198.51.100.1, 198.051.100.01]
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  healthCheckNodePort: 31000
  sessionAffinity: ClientIP
  loadBalancerSourceRanges: [" 203.0.113.7/24 ", 10.0.0.0/8]
  trafficDistribution: PreferSameZone
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: web, nodePort: 80}
  - {name: dns, port: 53, protocol: UDP, nodePort: 30053}
  - {name: dns-tcp, port: 53, protocol: TCP}
status:
  loadBalancer:
    ingress: [{ip: 203.0.113.1}, {ip: 203.0.113.2, ipMode: Proxy}, {ip: "2001:db8::1", ipMode: VIP}, {hostname: a.example.org}]
`), "shop", "web")
	same(t, "service", in.Service, lb.Service{
		Name: lb.ServiceName{Namespace: "shop", Name: "web"}, Type: lb.TypeLoadBalancer,
		ClusterIPs:      []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::10")},
		ExternalIPs:     []netip.Addr{netip.MustParseAddr("198.51.100.1")},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")},
		Ports: []lb.ServicePort{
			{Name: "http", Protocol: lb.TCP, Port: 80, NodePort: 80},
			{Name: "dns", Protocol: lb.UDP, Port: 53, NodePort: 30053},
			{Name: "dns-tcp", Protocol: lb.TCP, Port: 53},
		},
		Internal: lb.PolicyLocal, External: lb.PolicyLocal, Affinity: 3 * time.Hour,
		SourceRanges:    []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("203.0.113.0/24")},
		HealthCheckPort: 31000, WantsHints: true,
	})
}

// C8, and the filters of service-semantics.md 1.0.
func TestServicesWithoutFrontendsAreNoInput(t *testing.T) {
	for name, text := range map[string]string{
		"headless":            withSpec("clusterIP: None, ports: [{port: 80}]"),
		"headless, no ports":  withSpec("clusterIP: None"),
		"ExternalName":        withSpec("type: ExternalName, externalName: example.org"),
		"another proxy":       "{apiVersion: v1, kind: Service, metadata: {name: web, labels: {service.kubernetes.io/service-proxy-name: other}}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}",
		"proxy without value": "{apiVersion: v1, kind: Service, metadata: {name: web, labels: {service.kubernetes.io/service-proxy-name: ''}}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}",
	} {
		if names := load(t, NodeConfig{}, text).Services(); len(names) > 0 {
			t.Errorf("%s: served as %v", name, names)
		}
	}
}

func TestAServiceThatBreaksARuleIsRefusedWithItsField(t *testing.T) {
	const ip = "clusterIP: 10.96.0.10, "
	rows := []struct{ spec, field, value string }{
		{ip + "ports: []", "spec.ports", ""},
		{ip + "ports: [{port: 0}]", "spec.ports[0].port", "0"},
		{ip + "ports: [{port: 65536}]", "spec.ports[0].port", "65536"},
		{ip + "ports: [{port: -1}]", "spec.ports[0].port", "-1"},
		{ip + "ports: [{port: eighty}]", "spec.ports.port", "string"},
		{ip + "ports: [{port: 99999999999}]", "spec.ports.port", "number 99999999999"},
		{ip + "ports: {port: 80}", "spec.ports", "object"},
		{ip + "ports: [{port: 80, protocol: ICMP}]", "spec.ports[0].protocol", `"ICMP"`},
		{ip + "ports: [{port: 80, targetPort: 70000}]", "spec.ports[0].targetPort", "70000"},
		{ip + "ports: [{port: 80, targetPort: Not_A_Name}]", "spec.ports[0].targetPort", `"Not_A_Name"`},
		{ip + "ports: [{port: 80, name: A_b}]", "spec.ports[0].name", `"A_b"`},
		{ip + "ports: [{port: 80}, {port: 81, name: b}]", "spec.ports[0].name", ""},
		{ip + "ports: [{port: 80, name: a}, {port: 81, name: a}]", "spec.ports[1].name", `"a"`},
		{ip + "ports: [{port: 80, name: a}, {port: 80, name: b}]", "spec.ports[1].port", `"80"`},
		{ip + "ports: [{port: 80, nodePort: 30000}]", "spec.ports[0].nodePort", ""},
		{ip + "type: NodePort, ports: [{port: 80, nodePort: 65536}]", "spec.ports[0].nodePort", "65536"},
		{ip + "type: NodePort, ports: [{port: 80, name: a, nodePort: 3}, {port: 81, name: b, nodePort: 3}]", "spec.ports[1].nodePort", `"3"`},
		{ip + "type: Balanced, ports: [{port: 80}]", "spec.type", `"Balanced"`},
		{ip + "type: LoadBalancer, ports: [{port: 10250}]", "spec.ports[0].port", "10250"},
		{ip + "type: NodePort, ports: [{port: 80}], loadBalancerSourceRanges: [10.0.0.0/8]", "spec.loadBalancerSourceRanges", ""},
		{ip + "type: LoadBalancer, ports: [{port: 80}], loadBalancerSourceRanges: [10.0.0.0/33]", "spec.loadBalancerSourceRanges[0]", `"10.0.0.0/33"`},
		{ip + "ports: [{port: 80}], loadBalancerClass: example.org/a", "spec.loadBalancerClass", ""},
		{ip + "ports: [{port: 80}], allocateLoadBalancerNodePorts: false", "spec.allocateLoadBalancerNodePorts", ""},
		{ip + "ports: [{port: 80}], sessionAffinity: Cookie", "spec.sessionAffinity", `"Cookie"`},
		{ip + "ports: [{port: 80}], sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}", "spec.sessionAffinityConfig.clientIP.timeoutSeconds", "0"},
		{ip + "ports: [{port: 80}], sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}", "spec.sessionAffinityConfig.clientIP.timeoutSeconds", "86401"},
		{ip + "ports: [{port: 80}], internalTrafficPolicy: Nearest", "spec.internalTrafficPolicy", `"Nearest"`},
		{ip + "ports: [{port: 80}], externalTrafficPolicy: Local", "spec.externalTrafficPolicy", `"Local"`},
		{ip + "type: NodePort, ports: [{port: 80}], externalTrafficPolicy: Far", "spec.externalTrafficPolicy", `"Far"`},
		{ip + "ports: [{port: 80}], trafficDistribution: Far", "spec.trafficDistribution", `"Far"`},
		{ip + "type: LoadBalancer, ports: [{port: 80}], healthCheckNodePort: 31000", "spec.healthCheckNodePort", "31000"},
		{ip + "type: LoadBalancer, externalTrafficPolicy: Local, ports: [{port: 80}], healthCheckNodePort: 99999", "spec.healthCheckNodePort", "99999"},
		{ip + "ports: [{port: 80}], externalIPs: [198.51.100]", "spec.externalIPs[0]", `"198.51.100"`},
		{ip + "ports: [{port: 80}], externalIPs: [127.0.0.1]", "spec.externalIPs[0]", `"127.0.0.1"`},
		{ip + "ports: [{port: 80}], externalIPs: ['fe80::1']", "spec.externalIPs[0]", `"fe80::1"`},
		{ip + "ports: [{port: 80}], selector: {'a b': c}", "spec.selector", `"a b"`},
		{ip + "ports: [{port: 80}], ipFamilies: [IPv6]", "spec.clusterIP", `"10.96.0.10"`},
		{ip + "ports: [{port: 80}], ipFamilies: [IPv4, IPv4]", "spec.ipFamilies[1]", `"IPv4"`},
		{ip + "ports: [{port: 80}], ipFamilies: [IPX]", "spec.ipFamilies[0]", `"IPX"`},
		{ip + "ports: [{port: 80}], ipFamilyPolicy: Some", "spec.ipFamilyPolicy", `"Some"`},
		{ip + "ports: [{port: 80}], clusterIPs: [10.96.0.11]", "spec.clusterIPs[0]", "10.96.0.11"},
		{ip + "ports: [{port: 80}], clusterIPs: [10.96.0.10, 10.96.0.11]", "spec.clusterIPs[1]", `"10.96.0.11"`},
		{ip + "ports: [{port: 80}], clusterIPs: [10.96.0.10, 'fd00::1', 'fd00::2']", "spec.clusterIPs", "3"},
		{ip + "ports: [{port: 80}], ipFamilyPolicy: SingleStack, clusterIPs: [10.96.0.10, 'fd00::1']", "spec.ipFamilyPolicy", `"SingleStack"`},
		{"ports: [{port: 80}], clusterIPs: [10.96.0.10]", "spec.clusterIPs", "[10.96.0.10]"},
		{"clusterIP: 10.96.0, ports: [{port: 80}]", "spec.clusterIP", `"10.96.0"`},
		{"clusterIP: 0.0.0.0, ports: [{port: 80}]", "spec.clusterIP", `"0.0.0.0"`},
		{"clusterIP: None, type: NodePort, ports: [{port: 80}]", "spec.clusterIP", `"None"`},
		{"type: ExternalName", "spec.externalName", ""},
		{"type: ExternalName, externalName: 'a_b'", "spec.externalName", `"a_b"`},
		{"type: ExternalName, externalName: a.b, clusterIP: 10.96.0.1", "spec.clusterIP", ""},
	}
	for _, row := range rows {
		_, err := Load([]string{"-"}, strings.NewReader(withSpec(row.spec)), NodeConfig{}, nil)
		var refusal *ObjectError
		if !errors.As(err, &refusal) {
			t.Errorf("{%s}: error is %v, want an ObjectError", row.spec, err)
			continue
		}
		if refusal.Field != row.field || !strings.Contains(refusal.Value, row.value) || refusal.File != "standard input" || refusal.Problem == "" ||
			!strings.HasSuffix(refusal.Object, "web") {
			t.Errorf("{%s}: refused with %+v, want field %s, value %s", row.spec, *refusal, row.field, row.value)
		}
	}
}

func TestABadStatusOfAServiceIsRefusedOrAProblem(t *testing.T) {
	text := func(ingress string) string {
		return "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {type: LoadBalancer, clusterIP: 10.96.0.10, selector: {a: b}, ports: [{port: 80}]}, status: {loadBalancer: {ingress: [" + ingress + "]}}}"
	}
	for ingress, field := range map[string]string{
		"{ip: 1.2.3}":                "status.loadBalancer.ingress[0].ip",
		"{ip: 1.2.3.4, ipMode: Odd}": "status.loadBalancer.ingress[0].ipMode",
		"{ipMode: VIP}":              "status.loadBalancer.ingress[0].ipMode",
	} {
		_, err := Load([]string{"-"}, strings.NewReader(text(ingress)), NodeConfig{}, nil)
		var refusal *ObjectError
		if !errors.As(err, &refusal) || refusal.Field != field {
			t.Errorf("%s: error is %v, want field %s", ingress, err, field)
		}
	}
	in := input(t, load(t, NodeConfig{}, text("{ip: 127.0.0.1}")), "default", "web")
	same(t, "problems", in.Problems, []lb.Problem{{Object: "Service default/web", Field: "status.loadBalancer.ingress[0].ip",
		Message: `"127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)`}})
}

func TestBadMetadataIsRefused(t *testing.T) {
	spec := ", spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}}"
	for meta, field := range map[string]string{
		"{}":                   "metadata.name",
		"{generateName: web-}": "metadata.name",
		"{name: web.a}":        "metadata.name",
		"{name: Web}":          "metadata.name",
		"{name: " + strings.Repeat("a", 64) + "}": "metadata.name",
		"{name: web, namespace: A}":               "metadata.namespace",
		"{name: web, labels: {a: 'b c'}}":         "metadata.labels",
		"{name: 7}":                               "metadata.name",
	} {
		_, err := Load([]string{"-"}, strings.NewReader("{apiVersion: v1, kind: Service, metadata: "+meta+spec), NodeConfig{}, nil)
		var refusal *ObjectError
		if !errors.As(err, &refusal) || refusal.Field != field {
			t.Errorf("%s: error is %v, want field %s", meta, err, field)
		}
	}
}

func TestAMissingNodePortIsAProblem(t *testing.T) {
	in := input(t, load(t, NodeConfig{}, withSpec("type: NodePort, clusterIP: 10.96.0.10, selector: {a: b}, ports: [{port: 80, name: a, nodePort: 9}, {port: 81, name: b}]")), "default", "web")
	same(t, "problems", in.Problems, []lb.Problem{{Object: "Service default/web", Field: "spec.ports[1].nodePort",
		Message: "no port given: the API server would have allocated one; there is no NodePort frontend"}})
}

// A14: a Service without selector whose Endpoints were not mirrored.
func TestASelectorlessServiceWithoutSlicesNamesTheLikelyExclusion(t *testing.T) {
	in := input(t, load(t, NodeConfig{}, withSpec("clusterIP: 10.96.0.10, ports: [{port: 80}]")), "default", "web")
	if len(in.Problems) != 1 || !strings.Contains(in.Problems[0].Message, "endpointslice.kubernetes.io/skip-mirror") {
		t.Errorf("problems are %v", in.Problems)
	}
}
