// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	wire "github.com/miekg/dns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/tests/rig"
)

// The cluster's DNS exists as objects alone: the agent, which is before it, answers all questions that are asked here.
const (
	dnsNamespace = "kube-system"
	dnsService   = "kube-dns"
	dnsPort      = 53
	ownPort      = 10053 // of the agent's responder, by default
)

var dnsAddress = netip.MustParseAddr("10.96.0.10")

// headlessServices is how many headless Services have names that are asked for.
const headlessServices = 20

// startNames starts the agent once more, with names, and waits until it answers them in both ways.
func (c *course) startNames() error {
	if c.proxy.names == nil {
		return nil
	}
	if err := c.stop(true); err != nil {
		return err
	}
	c.world.putNames()
	var err error
	if c.process, err = c.proxy.names(c.kubeconfig); err != nil {
		return err
	}
	if _, err := c.await(); err != nil {
		return err
	}
	for deadline := time.Now().Add(c.proxy.limit); ; time.Sleep(10 * time.Millisecond) {
		status, err := agent.ReadStatus(c.lab.LockDir(), c.proxy.node.PinPath())
		if err == nil && status.PID == c.process.PID() && status.Listen["dns"] != "" {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("await that it answers names: after %s it says %v, %v", c.proxy.limit, status.Listen, err)
		}
	}
	for number := range headlessServices {
		for _, at := range []netip.AddrPort{c.inTheKernel(), c.byTheResponder()} {
			if _, err := c.named(number, at, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// inTheKernel and byTheResponder are where the two answer a pod.
func (c *course) inTheKernel() netip.AddrPort { return netip.AddrPortFrom(dnsAddress, dnsPort) }

func (c *course) byTheResponder() netip.AddrPort { return netip.AddrPortFrom(c.proxy.node.V4, ownPort) }

// changeNames changes one endpoint of headless Services, and measures until questions are answered with the new one alone.
func (c *course) changeNames() error {
	if c.proxy.names == nil {
		return nil
	}
	before, err := c.answeredInTheKernel()
	if err != nil {
		return err
	}
	for i := range c.rounds {
		for _, of := range []struct {
			at    netip.AddrPort
			taken *[]time.Duration
			to    int
		}{{c.inTheKernel(), &c.figures.kernelNames, 1}, {c.byTheResponder(), &c.figures.responderNames, 0}} {
			took, err := c.named(i%headlessServices, of.at, of.to)
			if err != nil {
				return err
			}
			*of.taken = append(*of.taken, took)
			time.Sleep(c.proxy.rest())
		}
	}
	after, err := c.answeredInTheKernel()
	if err == nil && after < before+uint64(c.rounds) {
		err = fmt.Errorf("the kernel answered %d questions, want at least %d", after-before, c.rounds)
	}
	slices.Sort(c.figures.kernelNames)
	slices.Sort(c.figures.responderNames)
	return err
}

func (c *course) answeredInTheKernel() (uint64, error) {
	verdicts, err := rig.Verdicts(c.lab, c.proxy.node)
	return verdicts["reject_name"], err
}

// named has one of the near endpoints of a headless Service be its only one, and measures until a question for its name is answered
// with that and nothing else: to the moment when that question was asked.
func (c *course) named(number int, at netip.AddrPort, which int) (took time.Duration, err error) {
	query, err := new(wire.Msg).SetQuestion(headlessName(number)+"."+namespaceName(number)+".svc.cluster.local.", wire.TypeA).Pack()
	if err != nil {
		return 0, err
	}
	err = c.prober.from.Do(func() error {
		began := time.Now()
		c.api.Put(c.headlessSlice(number, which))
		for {
			asked := time.Now()
			got, err := askName(at, query)
			if took = max(0, asked.Sub(began)); err == nil && slices.Equal(got, []netip.Addr{c.world.near[which]}) {
				return nil
			}
			if took > c.proxy.limit {
				return fmt.Errorf("await that %s answers with %s: after %s it says %v, %v", at, c.world.near[which], took, got, err)
			}
			pace(took)
		}
	})
	return took, err
}

// askName asks once, from a new socket of the calling thread's namespace, and gives the IPv4 addresses of the answer.
func askName(at netip.AddrPort, query []byte) (addresses []netip.Addr, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
		return nil, err
	}
	if _, err := unix.Write(fd, query); err != nil {
		return nil, err
	}
	buffer := make([]byte, wire.DefaultMsgSize)
	n, err := unix.Read(fd, buffer)
	if err != nil {
		return nil, err
	}
	m := new(wire.Msg)
	if err := m.Unpack(buffer[:n]); err != nil {
		return nil, err
	}
	for _, record := range m.Answer {
		if a, is := record.(*wire.A); is {
			address, _ := netip.AddrFromSlice(a.A.To4())
			addresses = append(addresses, address)
		}
	}
	return addresses, nil
}

// putNames makes what names need beside the Services: Namespaces, the cluster's DNS, and headless Services.
func (w *world) putNames() {
	w.api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: dnsNamespace}})
	for i := range namespaces {
		w.api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceName(i)}})
	}
	w.api.Put(w.dns()...)
	for i := range headlessServices {
		w.api.Put(w.headless(i), w.headlessSlice(i, 0))
	}
}

func (w *world) dns() []runtime.Object {
	s := w.service(0)
	s.Namespace, s.Name = dnsNamespace, dnsService
	s.Spec.ClusterIP, s.Spec.ClusterIPs = dnsAddress.String(), []string{dnsAddress.String()}
	s.Spec.Ports = []corev1.ServicePort{{Name: "dns", Port: dnsPort, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: dnsPort, Protocol: corev1.ProtocolTCP}}
	e := &discoveryv1.EndpointSlice{ObjectMeta: s.ObjectMeta, AddressType: discoveryv1.AddressTypeIPv4}
	e.Labels = map[string]string{discoveryv1.LabelServiceName: dnsService}
	for _, p := range s.Spec.Ports {
		e.Ports = append(e.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
	}
	e.Endpoints = []discoveryv1.Endpoint{endpoint(w.far[0], nodeName(0), farZone, true, 0, 0)}
	return []runtime.Object{s, e}
}

func (w *world) headless(number int) *corev1.Service {
	s := w.service(number)
	s.Name, s.Namespace = headlessName(number), namespaceName(number)
	s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	return s
}

// headlessSlice has the one near endpoint be ready, and the other one not.
func (w *world) headlessSlice(number, which int) *discoveryv1.EndpointSlice {
	s := w.slice(number)
	s.Name, s.Namespace, s.GenerateName, s.OwnerReferences = headlessName(number)+"-abcde", namespaceName(number), "", nil
	s.Labels = map[string]string{discoveryv1.LabelServiceName: headlessName(number)}
	s.Endpoints = nil
	for e, address := range w.near {
		s.Endpoints = append(s.Endpoints, endpoint(address, w.node, nearZone, e == which, number, e))
	}
	return s
}

func headlessName(number int) string  { return fmt.Sprintf("headless-%02d", number) }
func namespaceName(number int) string { return named(number).Namespace }
