// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/rig"
)

func toNamed(names ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].TargetPort = intstr.FromString(names[i%len(names)])
		}
	}
}

func containerPorts(number int32, tcp, udp string) []corev1.ContainerPort {
	return []corev1.ContainerPort{
		{Name: tcp, ContainerPort: number, Protocol: corev1.ProtocolTCP}, {Name: udp, ContainerPort: number, Protocol: corev1.ProtocolUDP},
	}
}

// A15: pods that mean different numbers by one name are in slices of their own, and each is asked on its own number.
func TestNamedTargetPortsMeanWhatEachPodSays(t *testing.T) {
	c := rig.Shared(t)
	client := c.Client(0, "client")
	numbers := map[string]uint16{"one": 8080, "two": 9090, "three": 10080}
	var servers []*rig.Pod
	for i, name := range []string{"one", "two", "three"} {
		number := numbers[name]
		servers = append(servers, c.NewPod(rig.PodOptions{
			App: "web", Name: name, Node: i, Serve: []uint16{number}, Ports: containerPorts(int32(number), "web", "dns"),
		}))
	}
	web := c.Service("web", toNamed("web", "dns"))
	web.AwaitServers(client, servers...)
	c.AwaitAnswer(client, web.OnClusterIP(), rig.Ways(), func(a lab.Answer) bool { return a.Local.Port() == numbers[a.Server] })
	servers[0].SetReady(false)
	web.AwaitServers(client, servers[1:]...)
}

// Sidecars are init containers that go on running: their ports are the pod's, by number and by name.
func TestPortsOfSidecarsAreServed(t *testing.T) {
	c := rig.Shared(t)
	client := c.Client(0, "client")
	one := c.NewPod(rig.PodOptions{App: "web", Name: "one", Node: 2, Serve: []uint16{10080}, Change: func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{
			Name: "sidecar", Image: "none", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Ports: containerPorts(10080, "side", "dns"),
		}}
	}})
	c.Service("web", toNamed("side", "dns")).AwaitServers(client, one)
	c.Service("number", func(s *corev1.Service) {
		s.Spec.Selector = map[string]string{"app": "web"}
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].TargetPort = intstr.FromInt32(10080)
		}
	}).AwaitServers(client, one)
}

// C22: pods with the host's network, for every kind of client; hairpin among them.
func TestPodsWithTheHostsNetworkAreServed(t *testing.T) {
	c := rig.Shared(t)
	host := c.NewPod(rig.PodOptions{App: "web", Name: "host", Node: 1, HostNetwork: true})
	web := c.Service("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort; nodePorts(s, 9140) })
	for _, from := range []rig.Host{c.Client(0, "far"), c.Client(1, "near"), c.Node(0), c.Node(1)} {
		web.AwaitServers(from, host)
	}
	for n := range 3 {
		c.AwaitServers(c.Outside(), rig.AtHost(c.Node(n), 9140), rig.Ways(), host)
	}
}

// A pod reaches itself through its Service; a client's address is the one that the pod sees, near and far; what is large arrives.
func TestPodsSeeTheirClientsAsTheyAre(t *testing.T) {
	c := rig.Shared(t)
	far, near := c.Client(0, "far"), c.Client(2, "near")
	one := c.Server("web", "one", 2)
	web := c.Service("web", nil)
	at := web.OnClusterIP()
	for _, client := range []*lab.Pod{far, near} {
		c.AwaitAnswer(client, at, rig.Ways(), func(a lab.Answer) bool { return a.Client.Addr() == client.Address(a.Client.Addr().Is6()) })
	}
	web.AwaitServers(one, one)
	for _, w := range rig.Ways() {
		conn, err := far.Dial(t.Context(), w.Network, at(w.Six), lab.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if w.Network == "tcp" {
			err = conn.Put(1, 4<<20)
		} else {
			_, _, err = conn.Exchange(make([]byte, 8<<10)) // in fragments
		}
		if err != nil {
			t.Errorf("%s: large requests: %v", w, err)
		}
		_ = conn.Close()
	}
}
