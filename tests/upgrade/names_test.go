// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/lab"
)

// The lifetimes of answers say whose they are: the node's, or those of the cluster's DNS.
const (
	nodesTTL    = 5
	clustersTTL = 7
)

// resolverTime is how long a resolver waits before it asks again (resolv.conf(5), timeout).
const resolverTime = 5 * time.Second

// clusterDNS is a server of names on the other node, and its Service.
func (r *rig) clusterDNS() lab.Service {
	r.t.Helper()
	pod := r.addPod(r.there, "coredns")
	_, err := pod.Start("dns", []string{"/proc/self/exe", "dns", "serve", "-f", r.Manifests.Dir, "--listen", ":53", "--ttl", fmt.Sprint(clustersTTL)}, runAsCLI+"=1")
	r.must(err)
	s := service(9)
	s.Name, s.Ports = "kube-dns", []lab.Port{{Name: "tcp", Protocol: "TCP", Port: 53}, {Name: "udp", Protocol: "UDP", Port: 53}}
	slices := lab.Slices{Service: s.Name, Ports: s.Ports, Endpoints: []lab.Endpoint{{Pod: pod}}}
	r.must(r.Manifests.Write("dns.yaml", append(slices.Objects(), s)...))
	return s
}

// ask asks once, from a new socket, and returns the lifetime of what it is told.
func (r *rig) ask(to netip.AddrPort, name string, qtype uint16, patience time.Duration) (uint32, error) {
	conn, err := r.pod.Dial(context.Background(), "udp", to, lab.DialOptions{Patience: patience})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	over := &wire.Conn{Conn: conn.Conn}
	if err := over.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	if err := over.WriteMsg(new(wire.Msg).SetQuestion(name, qtype)); err != nil {
		return 0, err
	}
	m, err := over.ReadMsg()
	switch {
	case err != nil:
		return 0, err
	case m.Rcode != wire.RcodeSuccess || len(m.Answer) != 1:
		return 0, fmt.Errorf("%s: %v", name, m)
	}
	return m.Answer[0].Header().Ttl, nil
}

// Of the questions that a pod asks while its node's agent becomes one of another layout, and back, none is lost that is asked twice: those that
// the kernel answers and those of the responder.
func TestQuestionsAreAnsweredOverAnUpgradeAndADowngrade(t *testing.T) {
	r := newRig(t, "--dns", "--dns-service=default/kube-dns")
	dns, web := r.clusterDNS(), service(1)
	r.publish(web, r.near)
	names := map[string]uint16{web.Name + ".default.svc.cluster.local.": wire.TypeA, "_tcp._tcp." + web.Name + ".default.svc.cluster.local.": wire.TypeSRV}
	at := []netip.AddrPort{netip.AddrPortFrom(dns.ClusterIPs[0], 53), netip.AddrPortFrom(dns.ClusterIPs[1], 53)}
	become := func(next layout) {
		t.Helper()
		r.become(next)
		for name, qtype := range names {
			for _, to := range at {
				err := lab.Await(patience, func() bool {
					ttl, err := r.ask(to, name, qtype, time.Second)
					return err == nil && ttl == nodesTTL
				})
				if err != nil {
					t.Fatalf("layout %s: the node answers %s at %s: %v", next.name, name, to, err)
				}
			}
		}
		if err := lab.Await(patience, func() bool {
			s, err := r.status()
			return err == nil && s.Names != nil && s.Names.Kernel != nil && s.Names.Kernel.Answering
		}); err != nil {
			t.Fatalf("layout %s: names in the kernel: %v", next.name, err)
		}
	}
	become(ours)
	l := r.load()
	for name, qtype := range names {
		for _, to := range at {
			l.repeat(func() error {
				ttl, err := r.ask(to, name, qtype, resolverTime)
				if err != nil {
					time.Sleep(pace) // a process that ends closes its sockets one after the other
					ttl, err = r.ask(to, name, qtype, patience)
				}
				if err == nil && ttl != nodesTTL && ttl != clustersTTL {
					err = fmt.Errorf("%s at %s: lifetime %d", name, to, ttl)
				}
				return err
			})
		}
	}
	l.more(some)
	for _, next := range []layout{other, ours} {
		become(next)
		l.more(some)
	}
	l.end()
}
