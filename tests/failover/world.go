// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/fakeapi"
	"github.com/nearlb/nearlb/tests/rig"
)

const (
	servicePort = 80
	targetPort  = 8080

	clients     = 4 // pods: two at least tell a dead backend from a client that has no way to it
	serverNodes = 3
)

// proxy is who is measured.
type proxy struct {
	name  string
	start func(w *world) (*lab.Process, error)
}

func startNearlb(w *world) (*lab.Process, error) {
	return w.here.StartAgent(lab.AgentOptions{Command: []string{w.nearlb, "agent"}, Kubeconfig: w.kubeconfig})
}

// startHearing has an agent on each node, with a key that all share: so they ask each other whether they are there.
func startHearing(w *world) (*lab.Process, error) {
	w.heartbeats = true
	key := filepath.Join(w.lab.Dir, "key")
	if err := os.WriteFile(key, []byte("a key that all nodes share\n"), 0o600); err != nil {
		return nil, err
	}
	options := lab.AgentOptions{Command: []string{w.nearlb, "agent"}, Kubeconfig: w.kubeconfig, Args: []string{"--tunnel-key-file", key}}
	for _, n := range w.nodes {
		if _, err := n.StartAgent(options); err != nil {
			return nil, err
		}
	}
	return w.here.StartAgent(options)
}

func startKubeProxy(w *world) (*lab.Process, error) {
	return rig.StartKubeProxy(w.here, w.kubeProxy, w.kubeconfig)
}

// world is a cluster: the clients' node, on which the proxy runs, and nodes of servers.
type world struct {
	options
	lab        *lab.Lab
	api        *fakeapi.Server
	running    *fakeapi.Running
	kubeconfig string
	here       *lab.Node
	proxy      *lab.Process
	clients    []*lab.Pod
	nodes      []*lab.Node
	servers    []*server // of the Service web, and then that of the Service other

	annotations map[string]string // of the Services
	heartbeats  bool              // nodes hear each other
}

// server is one backend.
type server struct {
	*lab.Pod
	service string
	serves  *lab.Server
	gone    bool // no endpoint of the Service
}

// addresses are the Services' ClusterIPs, one of each family.
var addresses = map[string][2]netip.Addr{
	"web":   {netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd96::10")},
	"other": {netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("fd96::11")},
}

func newWorld(o options, l *lab.Lab, p proxy) (*world, error) {
	w := &world{options: o, lab: l, api: fakeapi.New(fakeapi.Options{})}
	if err := w.serveAPI(); err != nil {
		return nil, err
	}
	var err error
	if w.here, err = w.addNode("clients"); err != nil {
		return nil, err
	}
	for i := range clients {
		pod, err := w.here.AddPod(fmt.Sprint("client-", i))
		if err != nil {
			return nil, err
		}
		// As many ports as there are: none is used twice while a scene lasts.
		if err := pod.Sysctl("ipv4/ip_local_port_range=1024 65535"); err != nil {
			return nil, err
		}
		w.clients = append(w.clients, pod)
	}
	for i := range serverNodes {
		n, err := w.addNode(fmt.Sprint("servers-", i))
		if err != nil {
			return nil, err
		}
		w.nodes = append(w.nodes, n)
	}
	for i := range 10 { // four on the first of three nodes
		if err := w.addServer("web", i); err != nil {
			return nil, err
		}
	}
	for i := range serverNodes {
		if err := w.addServer("other", i); err != nil {
			return nil, err
		}
	}
	w.publish()
	w.proxy, err = p.start(w)
	return w, err
}

func (w *world) close() { w.running.Close() }

// serveAPI has the API server listen on a host of its own.
func (w *world) serveAPI() error {
	host, err := w.lab.AddOutside(lab.OutsideOptions{Name: "control"})
	if err != nil {
		return err
	}
	w.kubeconfig = filepath.Join(w.lab.Dir, "kubeconfig")
	w.running, err = rig.ServeAPI(w.api, host, w.kubeconfig)
	return err
}

func (w *world) addNode(name string) (*lab.Node, error) {
	n, err := w.lab.AddNode(lab.NodeOptions{Name: name, Zone: "a"})
	if err != nil {
		return nil, err
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: "a"}}}
	for _, a := range []netip.Addr{n.V4, n.V6} {
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	object.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	w.api.Put(object)
	return n, nil
}

func (w *world) addServer(service string, number int) error {
	pod, err := w.nodes[number%len(w.nodes)].AddPod(fmt.Sprint(service, "-", number))
	if err != nil {
		return err
	}
	serves, err := pod.Serve(targetPort)
	w.servers = append(w.servers, &server{Pod: pod, service: service, serves: serves})
	return err
}

// of are the servers of a Service.
func (w *world) of(service string) (all []*server) {
	for _, s := range w.servers {
		if s.service == service {
			all = append(all, s)
		}
	}
	return all
}

// publish tells the API server of the Services and of the endpoints that are not gone.
func (w *world) publish() {
	for name := range addresses {
		w.api.Put(w.serviceObject(name), w.slice(name, false), w.slice(name, true))
	}
}

func (w *world) serviceObject(name string) *corev1.Service {
	dual, cluster := corev1.IPFamilyPolicyRequireDualStack, corev1.ServiceInternalTrafficPolicyCluster
	at := addresses[name]
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: w.annotations}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: at[0].String(), ClusterIPs: []string{at[0].String(), at[1].String()},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, IPFamilyPolicy: &dual, InternalTrafficPolicy: &cluster,
		SessionAffinity: corev1.ServiceAffinityNone, Ports: []corev1.ServicePort{{Name: "http", Port: servicePort, Protocol: corev1.ProtocolTCP}},
	}}
}

func (w *world) slice(service string, six bool) *discoveryv1.EndpointSlice {
	name, port, protocol := "http", int32(targetPort), corev1.ProtocolTCP
	kind := map[bool]discoveryv1.AddressType{false: discoveryv1.AddressTypeIPv4, true: discoveryv1.AddressTypeIPv6}[six]
	s := &discoveryv1.EndpointSlice{AddressType: kind, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service + "-" + strings.ToLower(string(kind)), Labels: map[string]string{discoveryv1.LabelServiceName: service}}}
	for _, server := range w.of(service) {
		if server.gone {
			continue
		}
		ready, terminating := true, false
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{server.Address(six).String()}, NodeName: &server.Node.Name, Zone: &server.Node.Options.Zone,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready, Terminating: &terminating},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: server.Name}})
	}
	return s
}

// awaitServed waits until both Services answer every client by both families.
func (w *world) awaitServed() error {
	for _, c := range w.clients {
		for service := range addresses {
			for _, six := range []bool{false, true} {
				to := at(service, six)
				if err := lab.Await(time.Minute, func() bool { return once(c, to, 200*time.Millisecond) == nil }); err != nil {
					return fmt.Errorf("%s asks %s: %w", c, to, err)
				}
			}
		}
	}
	return nil
}

// at is where a Service is reached.
func at(service string, six bool) netip.AddrPort {
	if six {
		return netip.AddrPortFrom(addresses[service][1], servicePort)
	}
	return netip.AddrPortFrom(addresses[service][0], servicePort)
}

// said is what the proxy has logged, as an error.
func (w *world) said() error {
	text, err := os.ReadFile(w.proxy.Log)
	if err != nil {
		return err
	}
	return fmt.Errorf("the proxy says: %s", text)
}

// ejections counts how often nearlb has left a backend out.
func (w *world) ejections() (n int, err error) {
	text, err := os.ReadFile(w.proxy.Log)
	return strings.Count(string(text), "backend left out"), err
}
