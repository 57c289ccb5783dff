// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"strings"
	"testing"
)

// A4, A19: in a Service of 5,000 endpoints a change of one reaches the sockets; the others are on a node of their own.
func TestOneChangeInAServiceOf5000EndpointsReachesTheSockets(t *testing.T) {
	c := newCluster(t, options{alone: true})
	client, near, far := c.pod(0, "client"), c.server(0, "web-1"), c.server(1, "web-2")
	s := c.service(1)
	s.hints = true
	c.crowd(s.Name, 4998)
	s.publish(ready(near, far)...)
	s.awaitServer(client, near.Name)
	s.publish(append(ready(far), notReady(near))...)
	s.awaitServer(client, far.Name)
	s.publish(ready(near, far)...)
	s.awaitServer(client, near.Name)
}

// crowd writes slices of 100 endpoints of each family, all on a node elsewhere, for the Service.
func (c *cluster) crowd(service string, count int) {
	c.t.Helper()
	for first := 0; first < count; first += 100 {
		var text strings.Builder
		for _, family := range []string{"IPv4", "IPv6"} {
			fmt.Fprintf(&text, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n"+
				"  name: crowd-%d-%s\n  namespace: default\n  labels: {kubernetes.io/service-name: %s}\naddressType: %s\nports:\n",
				first, strings.ToLower(family), service, family)
			for _, p := range ports(targetPort) {
				fmt.Fprintf(&text, "- {name: %s, protocol: %s, port: %d}\n", p.Name, p.Protocol, p.Port)
			}
			text.WriteString("endpoints:\n")
			for i := first; i < min(first+100, count); i++ {
				address := fmt.Sprintf("10.200.%d.%d", i/250, 1+i%250)
				if family == "IPv6" {
					address = fmt.Sprintf("fd20::%x", i+1)
				}
				fmt.Fprintf(&text, "- {addresses: [%q], nodeName: n9, zone: z, conditions: {ready: true}, "+
					"hints: {forNodes: [{name: n9}], forZones: [{name: z}]}}\n", address)
			}
		}
		if err := c.Manifests.WriteText(fmt.Sprintf("crowd-%d.yaml", first), text.String()); err != nil {
			c.t.Fatal(err)
		}
	}
}
