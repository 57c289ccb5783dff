// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
)

// CVE-2020-8554: a Service names the address of a host outside, and one that the node has on a device for it.
func TestExternalIPsReachWhatTheirPolicyLets(t *testing.T) {
	for policy, captured := range map[string]bool{"allow": true, "local": false, "deny": false} {
		problems := map[string]int{"allow": 0, "local": 2, "deny": 4}[policy] // external IPs that are refused
		t.Run(policy, func(t *testing.T) {
			s := stageFor(t, options{alone: true, agent: []string{"--external-ips", policy}}, policy == "allow") // another test allows them
			server, err := s.outside.Serve(servicePort)
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			own := []netip.Addr{netip.MustParseAddr("198.51.100.77"), netip.MustParseAddr("2001:db8:1::77")}
			if err := s.here.Own(own...); err != nil && !errors.Is(err, syscall.EEXIST) { // of a run before
				t.Fatal(err)
			}
			of := s.service(1)
			of.ExternalIPs = append(own, s.outside.Address(false), s.outside.Address(true))
			s.serve(of, ready(s.near)...)
			answers := map[bool]string{true: s.near.Name, false: s.outside.Name}[captured]
			for _, w := range ways() {
				s.checkAnswerOf(netip.AddrPortFrom(s.outside.Address(w.six), servicePort), w, answers)
				if policy != "deny" {
					s.checkAnswerOf(netip.AddrPortFrom(map[bool]netip.Addr{false: own[0], true: own[1]}[w.six], servicePort), w, s.near.Name)
				}
			}
			s.await(fmt.Sprintf("the status names %d external IPs", problems), func() bool { return s.problems(0, "spec.externalIPs") == problems })
		})
	}
}

// CVE-2020-8554 as it was told of, where external IPs are allowed: one is a Node's own address, another one another Service's
// ClusterIP. Ports that a Service serves there stay its own, and no external IP of these is served in silence.
func TestExternalIPsOfSomebodyElseAreToldOf(t *testing.T) {
	s := onStage(t, options{alone: true, agent: []string{"--external-ips", "allow"}})
	for _, port := range []uint16{servicePort, targetPort} {
		server, err := s.here.Serve(port)
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
	}
	victim, thief := s.service(1), s.service(2)
	s.serve(victim, ready(s.near)...)
	const free = 81 // that the victim does not serve
	thief.ExternalIPs = append([]netip.Addr{s.here.Address(false), s.here.Address(true)}, victim.ClusterIPs...)
	thief.Ports = append(ports(servicePort), lab.Port{Name: "tcp-free", Protocol: "TCP", Port: free}, lab.Port{Name: "udp-free", Protocol: "UDP", Port: free})
	written := lab.Slices{Service: thief.Name, Ports: ports(targetPort), Endpoints: ready(s.far)}
	for _, p := range thief.Ports[2:] {
		written.Ports = append(written.Ports, lab.Port{Name: p.Name, Protocol: p.Protocol, Port: targetPort})
	}
	s.write(thief.Name+".yaml", append(written.Objects(), thief.Service)...)

	for _, w := range ways() {
		node, cluster := s.here.Address(w.six), victim.address(w.six).Addr()
		s.checkAnswerOf(netip.AddrPortFrom(node, servicePort), w, s.far.Name)
		s.checkAnswerOf(netip.AddrPortFrom(cluster, free), w, s.far.Name)
		s.checkAnswerOf(netip.AddrPortFrom(cluster, servicePort), w, s.near.Name)
		s.checkAnswerOf(netip.AddrPortFrom(node, targetPort), w, s.here.Name)
	}
	s.awaitProblem(thief, s.here.Address(false).String()+" is the address of Node n1:")
	s.awaitProblem(thief, s.here.Address(true).String()+" is the address of Node n1:")
	for _, a := range victim.ClusterIPs {
		s.awaitProblem(thief, a.String()+" is ClusterIP of Service default/"+victim.Name+":")
		s.awaitProblem(thief, "ExternalIP "+netip.AddrPortFrom(a, servicePort).String()+"/TCP belongs to Service default/"+victim.Name+" (ClusterIP);")
		s.awaitProblem(thief, "ExternalIP "+netip.AddrPortFrom(a, servicePort).String()+"/UDP belongs to Service default/"+victim.Name+" (ClusterIP);")
	}
	var counted, told string
	if lab.Await(patience, func() bool {
		told = strconv.Itoa(s.problems(0, "spec.externalIPs"))
		metrics, err := get(s.here, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), metricsPort), "/metrics")
		_, after, _ := strings.Cut(metrics.text, "\nnearlb_external_ip_problems ")
		counted, _, _ = strings.Cut(after, "\n")
		return err == nil && counted == told
	}) != nil {
		t.Errorf("nearlb_external_ip_problems is %q, the status names %s", counted, told)
	}
}

// awaitProblem waits until a problem of the Service's external IPs in the status of the first node's agent begins with this.
func (s *stage) awaitProblem(of *service, begins string) {
	s.t.Helper()
	s.await("the status says that "+begins, func() bool {
		status, err := agent.ReadStatus(s.LockDir(), s.here.PinPath())
		return err == nil && slices.ContainsFunc(status.Problems, func(p lb.Problem) bool {
			return p.Field == "spec.externalIPs" && p.Object == "Service default/"+of.Name && strings.HasPrefix(p.Message, begins)
		})
	})
}

// checkAnswerOf is who answers the stage's pod there, as soon as the address is known to the agent.
func (s *stage) checkAnswerOf(at netip.AddrPort, w way, want string) {
	s.t.Helper()
	var answer lab.Answer
	var err error
	s.await("the pod asks "+at.String()+" over "+w.String()+" and gets "+want, func() bool {
		answer, err = s.pod.Ask(s.t.Context(), w.network, at, lab.DialOptions{})
		return err == nil && answer.Server == want
	})
}

// problems is how many problems of a field the status of a node's agent has; -1 without a status.
func (c *cluster) problems(node int, field string) (n int) {
	status, err := agent.ReadStatus(c.LockDir(), c.nodes[node].PinPath())
	if err != nil {
		return -1
	}
	for _, p := range status.Problems {
		if p.Field == field {
			n++
		}
	}
	return n
}
