// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"strings"
	"testing"
)

func TestAnnotationsThatNobodyReadsAreProblems(t *testing.T) {
	for annotation, want := range map[string]string{
		"nearlb.io/local-falback":          "did you mean nearlb.io/local-fallback?",
		"nearlb.io/topologykeys":           "did you mean nearlb.io/topology-keys?",
		"nearlb.io/trafic-distribution":    "did you mean nearlb.io/traffic-distribution?",
		"nearlb.io/Local-Fallback":         "did you mean nearlb.io/local-fallback?",
		"nearlb.io/affinity":               "nearlb reads nearlb.io/balance, nearlb.io/dns, nearlb.io/ejection, nearlb.io/local-fallback, nearlb.io/off-node, nearlb.io/overflow, nearlb.io/reset-lost, nearlb.io/retry-refused, nearlb.io/slow-start, nearlb.io/topology-keys, nearlb.io/traffic-distribution, nearlb.io/udp-retry of a Service",
		"nearlb.io/weight":                 "it is not read of a Service: nearlb reads ",
		"nearlb.io/local-fallback":         "",
		"example.com/nearlb.io":            "",
		"service.kubernetes.io/topology-x": "",
	} {
		source := load(t, NodeConfig{}, annotated(annotation+": 'true'", ""))
		problems := input(t, source, "default", "web").Problems
		if want == "" {
			same(t, "problems of "+annotation, len(problems), 0)
			continue
		}
		if len(problems) != 1 || problems[0].Object != "Service default/web" || problems[0].Field != "metadata.annotations["+annotation+"]" ||
			!strings.HasPrefix(problems[0].Message, "has no effect: "+want) {
			t.Errorf("%s: %+v", annotation, problems)
		}
	}
	slice := strings.Replace(podSlice("web-1", "IPv4", "{addresses: [10.1.0.1]}"), "metadata: {", "metadata: {annotations: {nearlb.io/wieght: '3'}, ", 1)
	problems := input(t, load(t, NodeConfig{}, webService, slice), "default", "web").Problems
	if len(problems) != 1 || problems[0].Object != "EndpointSlice default/web-1" || problems[0].Message != "has no effect: did you mean nearlb.io/weight?" {
		t.Errorf("of a slice: %+v", problems)
	}
}
