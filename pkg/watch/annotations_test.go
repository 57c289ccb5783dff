// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

// annotated is a Service with annotations, in YAML's flow form, and more of its spec.
func annotated(annotations, spec string) string {
	if !strings.Contains(spec, "ports:") {
		spec += ", ports: [{port: 80}]"
	}
	return "{apiVersion: v1, kind: Service, metadata: {name: web, annotations: {" + annotations + "}}, " +
		"spec: {clusterIP: 10.96.0.10, selector: {a: b}" + spec + "}}"
}

// What is written is in force, or a problem says why not; a value that says nothing is neither.
func TestEachAnnotationIsInForceOrAProblem(t *testing.T) {
	right := map[string]string{annotationEjection: "on", annotationFallback: "true", annotationOffNode: "snat", annotationOverflow: "20%", annotationResetLost: "false",
		annotationRetryRefused: "true", annotationSlowStart: "30s", annotationKeys: "rack", annotationDistribution: "PreferSameZone"}
	for _, name := range ofServices {
		for _, value := range []string{right[name], "**", " "} {
			all := load(t, NodeConfig{}, annotated(name+": '"+value+"'", ", trafficDistribution: PreferClose")).(Looker).Annotated()
			if strings.TrimSpace(value) == "" {
				same(t, name+" of none", len(all), 0)
				continue
			}
			if len(all) != 1 || all[0].Service.Name != "web" || len(all[0].Annotations) != 1 {
				t.Fatalf("%s: %q: %+v", name, value, all)
			}
			if got := all[0].Annotations[0]; got.Name != name || got.Value != value || (got.Problem != "") != (value == "**") {
				t.Errorf("%q: %+v", value, got)
			}
		}
	}
}

// B1, B3, B4, B8: what each value asks for; a mistake asks for nothing and says so.
func TestAnnotationsAskForTopology(t *testing.T) {
	var many []string
	for i := range 17 {
		many = append(many, fmt.Sprintf("key-%d", i))
	}
	const local = ", type: NodePort, externalTrafficPolicy: Local"
	const udp = ", ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]"
	for _, row := range []struct {
		name, annotations, spec string
		want                    string // keys, distribution, fallback
		problems                []string
	}{
		{"B4: absent", "", "", "[]  false", nil},
		{"B4: empty", "nearlb.io/topology-keys: ' '", "", "[]  false", nil},
		{"B1: ordered, spaces around", "nearlb.io/topology-keys: ' kubernetes.io/hostname, topology.kubernetes.io/zone ,*'", "",
			"[kubernetes.io/hostname topology.kubernetes.io/zone *]  false", nil},
		{"B15: any label", "nearlb.io/topology-keys: rack", "", "[rack]  false", nil},
		{"B3: any alone", "nearlb.io/topology-keys: '*'", "", "[*]  false", nil},
		{"sixteen keys", "nearlb.io/topology-keys: '" + strings.Join(many[:16], ",") + "'", "", fmt.Sprint(many[:16]) + "  false", nil},
		{"B8: seventeen keys", "nearlb.io/topology-keys: '" + strings.Join(many, ",") + "'", "", "[]  false",
			[]string{"nearlb.io/topology-keys: 17: too many, must have at most 16 items"}},
		{"B8: twice", "nearlb.io/topology-keys: 'rack,zone,rack'", "", "[]  false", []string{`nearlb.io/topology-keys: "rack": duplicate value`}},
		{"B8: any not last", "nearlb.io/topology-keys: '*,rack'", "", "[]  false", []string{`nearlb.io/topology-keys: "*,rack": "*" must be the last key`}},
		{"B8: no qualified name, twice wrong", "nearlb.io/topology-keys: 'a/b/c,'", "", "[]  false", []string{
			`nearlb.io/topology-keys: "": name part must be non-empty`,
			`nearlb.io/topology-keys: "a/b/c": a valid label key must consist of`}},
		{"B8, B9: policy Local", "nearlb.io/topology-keys: rack", local, "[]  false",
			[]string{"nearlb.io/topology-keys: may not be used with externalTrafficPolicy Local"}},
		{"policy Local inside only", "nearlb.io/topology-keys: rack", ", internalTrafficPolicy: Local", "[rack]  false", nil},
		{"near", "nearlb.io/traffic-distribution: PreferSameNode", local, "[] PreferSameNode false", nil},
		{"near enough", "nearlb.io/traffic-distribution: PreferSameZone", "", "[] PreferSameZone false", nil},
		{"no such distribution", "nearlb.io/traffic-distribution: PreferClose", "", "[]  false",
			[]string{`nearlb.io/traffic-distribution: "PreferClose": unsupported value`}},
		{"both: keys win", "nearlb.io/traffic-distribution: PreferSameZone, nearlb.io/topology-keys: rack", "", "[rack]  false",
			[]string{"nearlb.io/traffic-distribution: has no effect beside nearlb.io/topology-keys"}},
		{"both, keys wrong: the other holds", "nearlb.io/traffic-distribution: PreferSameZone, nearlb.io/topology-keys: '**'", "", "[] PreferSameZone false",
			[]string{`nearlb.io/topology-keys: "**": name part must consist`}},
		{"overflow", "nearlb.io/overflow: ' 20% ', nearlb.io/traffic-distribution: PreferSameZone", "", "[] PreferSameZone false 20", nil},
		{"overflow of none", "nearlb.io/overflow: 0%", ", trafficDistribution: PreferClose", "[]  false 0", nil},
		{"no percentage", "nearlb.io/overflow: '20', nearlb.io/traffic-distribution: PreferSameZone", "", "[] PreferSameZone false",
			[]string{`nearlb.io/overflow: "20": must be a number from 0 to 900 and "%"`}},
		{"too much", "nearlb.io/overflow: 901%, nearlb.io/traffic-distribution: PreferSameZone", "", "[] PreferSameZone false", []string{`nearlb.io/overflow: "901%": must be`}},
		{"less than none", "nearlb.io/overflow: -1%, nearlb.io/traffic-distribution: PreferSameZone", "", "[] PreferSameZone false", []string{`nearlb.io/overflow: "-1%": must be`}},
		{"overflow of what stays nowhere", "nearlb.io/overflow: 20%", "", "[]  false", []string{"nearlb.io/overflow: has no effect without a preference for zones"}},
		{"overflow of a node", "nearlb.io/overflow: 20%", ", trafficDistribution: PreferSameNode", "[]  false", []string{"nearlb.io/overflow: has no effect beside PreferSameNode"}},
		{"overflow beside keys", "nearlb.io/overflow: 20%, nearlb.io/topology-keys: rack", "", "[rack]  false", []string{"nearlb.io/overflow: has no effect beside nearlb.io/topology-keys"}},
		{"slow start", "nearlb.io/slow-start: ' 30s '", "", "[]  false 30s", nil},
		{"slow start of hours", "nearlb.io/slow-start: 2h", "", "[]  false", []string{`nearlb.io/slow-start: "2h": must be a time from 1s to 1h0m0s`}},
		{"slow start at once", "nearlb.io/slow-start: 10ms", "", "[]  false", []string{`nearlb.io/slow-start: "10ms": must be`}},
		{"slow start of no unit", "nearlb.io/slow-start: '30'", "", "[]  false", []string{`nearlb.io/slow-start: "30": must be`}},
		{"lost connections are kept", "nearlb.io/reset-lost: 'false'", "", "[]  false keep", nil},
		{"lost connections are reset", "nearlb.io/reset-lost: 'true'", "", "[]  false", nil},
		{"no such thing", "nearlb.io/reset-lost: 'no'", "", "[]  false", []string{`nearlb.io/reset-lost: "no": unsupported value`}},
		{"refused connections go on", "nearlb.io/retry-refused: 'true'", "", "[]  false retry", nil},
		{"no such answer", "nearlb.io/retry-refused: 'yes'", "", "[]  false", []string{`nearlb.io/retry-refused: "yes": unsupported value`}},
		{"in turn", "nearlb.io/balance: round-robin", "", "[]  false round-robin", nil},
		{"by connections", "nearlb.io/balance: least-connections", "", "[]  false least-connections", nil},
		{"by hash", "nearlb.io/balance: maglev", "", "[]  false", nil},
		{"no such balance", "nearlb.io/balance: random", "", "[]  false", []string{`nearlb.io/balance: "random": unsupported value`}},
		{"datagrams go on", "nearlb.io/udp-retry: ' 3 '", udp, "[]  false 3 datagrams", nil},
		{"datagrams go on at once", "nearlb.io/udp-retry: '0'", udp, "[]  false", []string{`nearlb.io/udp-retry: "0": must be a number from 1 to 255`}},
		{"too many datagrams", "nearlb.io/udp-retry: '256'", udp, "[]  false", []string{`nearlb.io/udp-retry: "256": must be a number from 1 to 255`}},
		{"no datagrams", "nearlb.io/udp-retry: '3'", "", "[]  false", []string{"nearlb.io/udp-retry: has no effect without a port of protocol UDP"}},
		{"names", "nearlb.io/dns: prefer", "", "[]  false", nil},
		{"no such names", "nearlb.io/dns: nearest", "", "[]  false", []string{`nearlb.io/dns: "nearest": unsupported value`}},
		{"fallback", "nearlb.io/local-fallback: 'true'", local, "[]  true", nil},
		{"no fallback", "nearlb.io/local-fallback: 'false'", local, "[]  false", nil},
		{"no such fallback", "nearlb.io/local-fallback: 'yes'", local, "[]  false", []string{`nearlb.io/local-fallback: "yes": unsupported value`}},
	} {
		t.Run(row.name, func(t *testing.T) {
			in := input(t, load(t, NodeConfig{}, annotated(row.annotations, row.spec)), "default", "web")
			svc := in.Service
			asked := fmt.Sprintf("%v %s %t", svc.TopologyKeys, svc.Distribution, svc.LocalFallback)
			if svc.Overflow.Given {
				asked += fmt.Sprintf(" %d", svc.Overflow.Percent)
			}
			if svc.KeepLost {
				asked += " keep"
			}
			if svc.RetryRefused {
				asked += " retry"
			}
			if svc.Balancing != "" {
				asked += " " + string(svc.Balancing)
			}
			if svc.UDPRetry > 0 {
				asked += fmt.Sprintf(" %d datagrams", svc.UDPRetry)
			}
			if svc.SlowStart > 0 {
				asked += fmt.Sprintf(" %v", svc.SlowStart)
			}
			same(t, "asked for", asked, row.want)
			var got []lb.Problem
			for _, p := range in.Problems {
				if strings.HasPrefix(p.Field, "metadata.annotations") && p != noProcessors(svc.Name) {
					got = append(got, p)
				}
			}
			if len(got) != len(row.problems) {
				t.Fatalf("%d problems, want %d: %v", len(got), len(row.problems), got)
			}
			for i, p := range got {
				name, message, _ := strings.Cut(row.problems[i], ": ")
				if p.Object != "Service default/web" || p.Field != "metadata.annotations["+name+"]" || !strings.HasPrefix(p.Message, message) {
					t.Errorf("problem %v, want %s", p, row.problems[i])
				}
			}
		})
	}
}

// Headless Services alone have a choice of names, and they have no frontends whose problems could tell of it.
func TestAWrongAnnotationOfAHeadlessServiceIsAProblem(t *testing.T) {
	headless := func(value string) string {
		return "{apiVersion: v1, kind: Service, metadata: {name: db, annotations: {nearlb.io/dns: " + value + "}}, spec: {clusterIP: None, ports: [{port: 80}]}}"
	}
	for _, value := range []string{"order", "prefer", "' pin '", "''"} {
		if got := load(t, NodeConfig{}, headless(value)).Problems(); len(got) > 0 {
			t.Errorf("%s: %v", value, got)
		}
	}
	got := load(t, NodeConfig{}, headless("nearest")).Problems()
	if len(got) != 1 || got[0].Object != "Service default/db" || got[0].Field != "metadata.annotations[nearlb.io/dns]" || !strings.HasPrefix(got[0].Message, `"nearest": unsupported value`) {
		t.Errorf("got %v", got)
	}
	s, key := newStore(NodeConfig{}), objectKey{kindService, "default", "db"}
	s.apply([]object{{key: key, wrong: got}}, nil, &changes{})
	if keys := s.keys(kindService); len(keys) != 1 || keys[0] != key {
		t.Errorf("a list would not find it missing: %v", keys)
	}
	if s.apply(nil, s.keys(kindService), &changes{}); len(s.Problems()) > 0 || len(s.keys(kindService)) > 0 {
		t.Errorf("it is gone: %v", s.Problems())
	}
}

// The weight of a slice is that of its endpoints; a value that is none is a problem, and they count as those of any slice.
func TestASliceHasAWeight(t *testing.T) {
	slice := func(annotation string) string {
		return "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-a, labels: {kubernetes.io/service-name: web}, annotations: {" + annotation +
			"}}, addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.1.0.1]}]}"
	}
	for annotation, want := range map[string]lb.Weight{
		"": {}, "nearlb.io/weight: '0'": {Given: true}, "nearlb.io/weight: ' 7 '": {Value: 7, Given: true}, "nearlb.io/weight: '65535'": {Value: 65535, Given: true},
	} {
		in := input(t, load(t, NodeConfig{}, webService, slice(annotation)), "default", "web")
		same(t, annotation, in.Endpoints[0].Weight, want)
		same(t, annotation+": problems", len(in.Problems), 0)
	}
	for _, value := range []string{"''", "'65536'", "'-1'", "'1.5'", "much"} {
		in := input(t, load(t, NodeConfig{}, webService, slice("nearlb.io/weight: "+value)), "default", "web")
		same(t, value, in.Endpoints[0].Weight, lb.Weight{})
		if len(in.Problems) != 1 || in.Problems[0].Object != "EndpointSlice default/web-a" || in.Problems[0].Field != "metadata.annotations[nearlb.io/weight]" {
			t.Errorf("%s: problems %+v", value, in.Problems)
		}
	}
}

func TestHintsAreWantedOfWhoeverAsksTheController(t *testing.T) {
	for annotations, want := range map[string]bool{
		"": false, "service.kubernetes.io/topology-mode: Auto": true, "service.kubernetes.io/topology-aware-hints: auto": true,
		"service.kubernetes.io/topology-mode: Disabled": false,
	} {
		in := input(t, load(t, NodeConfig{}, annotated(annotations, "")), "default", "web")
		same(t, annotations, in.Service.WantsHints, want)
	}
	in := input(t, load(t, NodeConfig{}, annotated("", ", trafficDistribution: PreferClose")), "default", "web")
	same(t, "by the field", in.Service.WantsHints, true)
}

func TestAnnotationEjection(t *testing.T) {
	for value, want := range map[string]lb.Ejection{"off": lb.EjectionOff, " observe ": lb.EjectionObserve, "on": lb.EjectionOn, "": "", "true": ""} {
		in := input(t, load(t, NodeConfig{}, annotated("nearlb.io/ejection: '"+value+"'", "")), "default", "web")
		same(t, "mode of "+value, in.Service.Ejection, want)
		same(t, "problems of "+value, len(in.Problems) > 0, value == "true")
	}
}
