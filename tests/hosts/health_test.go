// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Ports that agents answer on.
const (
	healthPort      = 10256
	healthCheckPort = 32001 // the Service's healthCheckNodePort
)

// checked is a Service that load balancers outside ask each node about.
type checked struct {
	*stage
	of *service
}

func newChecked(t *testing.T) *checked {
	s := onStage(t, options{})
	of := s.next()
	of.ExternalIPs, of.LoadBalancers = nil, nil // see policy
	return &checked{stage: s, of: of}
}

// policy writes the Service. With Local it has a port for health checks; an API server lets no other have one.
func (c *checked) policy(name string) {
	c.t.Helper()
	port := ""
	if name == "Local" {
		port = fmt.Sprintf("healthCheckNodePort: %d", healthCheckPort)
	}
	c.writeText("service.yaml", fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec:
  type: LoadBalancer
  externalTrafficPolicy: %s
  %s
  clusterIP: %s
  clusterIPs: [%[4]s, "%s"]
  ports:
  - {name: tcp, protocol: TCP, port: %[6]d, nodePort: %d}
  - {name: udp, protocol: UDP, port: %[6]d, nodePort: %[7]d}
`, c.of.Name, name, port, c.of.ClusterIPs[0], c.of.ClusterIPs[1], servicePort, c.of.nodePort()))
}

func (c *checked) endpoints(endpoints ...lab.Endpoint) {
	c.t.Helper()
	c.write("slices.yaml", lab.Slices{Service: c.of.Name, Ports: ports(targetPort), Endpoints: endpoints}.Objects()...)
}

// says polls until the node tells the host outside, on both of its addresses, that it has so many local ready endpoints.
func (c *checked) says(node, endpoints int) {
	c.t.Helper()
	code := http.StatusOK
	if endpoints == 0 {
		code = http.StatusServiceUnavailable
	}
	text := fmt.Sprintf(`{
	"service": {
		"namespace": "default",
		"name": %q
	},
	"localEndpoints": %d,
	"serviceProxyHealthy": true
}`, c.of.Name, endpoints)
	for _, six := range []bool{false, true} {
		at := netip.AddrPortFrom(c.node(node).Address(six), healthCheckPort)
		for _, path := range []string{"/", "/any/path"} {
			var got page
			var err error
			right := func() bool {
				got, err = get(c.outside, at, path)
				return err == nil && got.code == code && got.text == text && got.header.Get("X-Load-Balancing-Endpoint-Weight") == strconv.Itoa(endpoints)
			}
			if lab.Await(patience, right) != nil {
				c.t.Fatalf("%v%s: %+v, %v; want %d and %s", at, path, got, err, code, text)
			}
		}
	}
}

// closed polls until nobody listens on the node's port for health checks.
func (c *checked) closed(node int) {
	c.t.Helper()
	for _, six := range []bool{false, true} {
		at := netip.AddrPortFrom(c.node(node).Address(six), healthCheckPort)
		c.await(fmt.Sprintf("%v is closed", at), func() bool {
			_, err := get(c.outside, at, "/")
			return refused(lab.Answer{}, err)
		})
	}
}

// What a load balancer outside is told of each node, while a Service's endpoints and its policy change.
func TestHealthCheckNodePortsTellWhichNodesHaveEndpoints(t *testing.T) {
	c := newChecked(t)
	second := c.server(0, "second")
	c.policy("Local")
	c.endpoints(ready(c.near)...)
	c.says(0, 1)
	c.says(1, 0)
	c.endpoints(ready(c.near, second, c.far)...)
	c.says(0, 2)
	c.says(1, 1)

	c.endpoints(append(ready(c.far), terminating(c.near))...)
	c.says(0, 0)
	c.says(1, 1)
	c.only(c.outside, c.of, []frontend{nodePort}, c.near) // who was sent here before the load balancer knew, is served
	c.endpoints(append(ready(c.far), notReady(c.near))...)
	c.says(0, 0)

	c.policy("Cluster")
	c.closed(0)
	c.closed(1)
	c.policy("Local")
	c.endpoints(ready(c.near)...)
	c.says(0, 1)
	c.says(1, 0)
}

// lifetime writes the first node's Node with these further lines of its metadata and spec.
func (c *checked) lifetime(metadata, spec string) {
	c.t.Helper()
	n := c.here
	c.writeText(nodeFile(n), fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %s, labels: {kubernetes.io/hostname: %[1]s, topology.kubernetes.io/zone: %s}, %s}
spec: {%s}
status: {addresses: [{type: InternalIP, address: %s}, {type: InternalIP, address: "%s"}]}
`, n.Name, n.Options.Zone, metadata, spec, n.V4, n.V6))
}

// eligible polls until both of the node's addresses say whether it is to get traffic. It lives either way.
func (c *checked) eligible(node int, want bool) {
	c.t.Helper()
	code := map[bool]int{true: http.StatusOK, false: http.StatusServiceUnavailable}[want]
	for _, six := range []bool{false, true} {
		at := netip.AddrPortFrom(c.node(node).Address(six), healthPort)
		var got page
		var err error
		right := func() bool {
			got, err = get(c.outside, at, "/healthz")
			return err == nil && got.code == code
		}
		if lab.Await(patience, right) != nil {
			c.t.Fatalf("%v/healthz: %+v, %v; want that eligible is %v", at, got, err, want)
		}
		var body struct{ NodeEligible, Healthy bool }
		if err := json.Unmarshal([]byte(got.text), &body); err != nil || body.NodeEligible != want || !body.Healthy {
			c.t.Errorf("%v/healthz: %s, %v", at, got.text, err)
		}
		if got, err := get(c.outside, at, "/livez"); err != nil || got.code != http.StatusOK {
			c.t.Errorf("%v/livez: %+v, %v", at, got, err)
		}
	}
}

// The node that is to go tells load balancers that it gets no new traffic, serves what comes all the same, and is not restarted.
func TestANodeThatIsAboutToBeDeletedSaysSo(t *testing.T) {
	c := newChecked(t)
	c.policy("Local")
	c.endpoints(ready(c.near, c.far)...)
	c.says(0, 1)
	for _, leaving := range []struct{ metadata, spec string }{
		{spec: `taints: [{key: ToBeDeletedByClusterAutoscaler, value: "1700000000", effect: NoSchedule}]`},
		{metadata: `deletionTimestamp: "2026-01-01T00:00:00Z"`},
	} {
		c.lifetime(leaving.metadata, leaving.spec)
		c.eligible(0, false)
		c.eligible(1, true)
		c.says(0, 1)
		c.only(c.outside, c.of, []frontend{nodePort}, c.near)
		c.lifetime("", "unschedulable: true, taints: [{key: node.kubernetes.io/unschedulable, effect: NoSchedule}]") // cordoned
		c.eligible(0, true)
	}
}
