// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"strings"
	"testing"
)

// For a trial beside kube-proxy, which leaves these Services alone.
func TestAProxyWithANameServesTheServicesThatAreGivenToItAlone(t *testing.T) {
	text := func(name, labels string) string {
		return "{apiVersion: v1, kind: Service, metadata: {name: " + name + ", namespace: default, labels: {" + labels +
			"}}, spec: {clusterIP: None, ports: [{port: 80}], type: ClusterIP}}"
	}
	services := []string{}
	for name, labels := range map[string]string{"plain": "", "trial": labelProxyName + ": nearlb", "other": labelProxyName + ": cilium", "empty": labelProxyName + ": ''"} {
		services = append(services, strings.Replace(text(name, labels), "clusterIP: None", "clusterIP: 10.96.0.1", 1))
	}
	services = append(services, text("headless", labelProxyName+": nearlb"))
	for proxy, want := range map[string]string{"": "[default/plain]", "nearlb": "[default/trial]", "nobody": "[]"} {
		names := []string{}
		for _, name := range load(t, NodeConfig{ProxyName: proxy}, services...).Services() {
			names = append(names, name.String())
		}
		if got := "[" + strings.Join(names, " ") + "]"; got != want {
			t.Errorf("proxy %q serves %s, want %s", proxy, got, want)
		}
	}
	same(t, "selector", NodeConfig{ProxyName: "nearlb"}.servicesOurs(), "service.kubernetes.io/service-proxy-name=nearlb")
	if err := (NodeConfig{ProxyName: "a,b"}).Validate(); err == nil {
		t.Error("a name that no label can have is taken")
	}
}
