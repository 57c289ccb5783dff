// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// What the policies of a Service let clients of each kind reach, on one cluster with a CNI's rules.
func TestTrafficPolicies(t *testing.T) {
	s := onStage(t, options{lab: lab.Options{Netfilter: true}})
	for name, test := range map[string]func(*testing.T, *stage){
		"external policy Local keeps clients off the node on it":               checkExternalLocal,
		"external policy Local drops where the node has no endpoint":           checkExternalLocalWithoutEndpoint,
		"external policy Local goes to the node's own terminating endpoint":    checkExternalLocalTerminating,
		"terminating endpoints serve when none is ready":                       checkTerminating,
		"internal policy Local is for the ClusterIP":                           checkInternalLocal,
		"internal policy Local drops where the node has no endpoint":           checkInternalLocalWithoutEndpoint,
		"source ranges are for load balancer addresses":                        checkSourceRanges,
		"a load balancer address may reach itself if the node is in its range": checkSourceRangeOfTheNodeItself,
		"a load balancer that wants to see packets itself is left alone":       checkProxyMode,
		"without endpoints everybody is refused everywhere":                    checkRefused,
		"a port that no Service has on a ClusterIP is refused to everybody":    checkUnknownPort,
	} {
		s.part(name, test)
	}
}

// only is that every new connection of the client to every one of the frontends is answered by that server.
func (s *stage) only(client host, of *service, kinds []frontend, server *lab.Pod) {
	s.t.Helper()
	of.awaitFrontends()
	for _, kind := range kinds {
		for _, w := range ways() {
			for range 4 {
				conn := s.dial(client, of, kind, w)
				s.checkAnswer(client, conn, server)
				_ = conn.Close()
			}
		}
	}
}

// both is that each of the two servers answers the client somewhen, on every one of the frontends.
func (s *stage) both(client host, of *service, kinds []frontend) {
	s.t.Helper()
	for _, kind := range kinds {
		for _, w := range ways() {
			s.await(fmt.Sprintf("near and far answer %s by %s over %s", client, kind, w), s.by(of, kind).bothAnswer(client, w))
		}
	}
}

// silent is that nobody answers the client and nobody refuses it: packets are dropped. The node's own sockets are told at
// once instead.
func (s *stage) silent(client host, of *service, kinds []frontend) {
	s.t.Helper()
	of.awaitFrontends()
	for _, kind := range kinds {
		for _, w := range ways() {
			ask, asItIs := s.by(of, kind).inVain, timedOut
			if client == host(s.here) {
				ask, asItIs = s.by(of, kind).ask, unreachable
			}
			answer, err := ask(client, w)
			if !asItIs(err) {
				s.t.Errorf("%s asks by %s over %s: %+v, %v; want silence", client, kind, w, answer, err)
			}
		}
	}
}

func timedOut(err error) bool {
	var late interface{ Timeout() bool }
	return errors.As(err, &late) && late.Timeout()
}

func unreachable(err error) bool { return errors.Is(err, syscall.EHOSTUNREACH) }

// by is the Service as it is asked on the first node.
func (s *stage) by(of *service, kind frontend) *service {
	out := of.by(kind, s.here)
	out.cluster = s.cluster
	return out
}

func externals() []frontend { return frontends()[1:] }

// Clients in the cluster, the node included, are not clients off the node: for them the whole cluster's endpoints serve.
func checkExternalLocal(_ *testing.T, s *stage) {
	of := s.next()
	of.ExternalLocal = true
	of.publish(ready(s.near, s.far)...)
	s.both(s.pod, of, frontends())
	s.both(s.here, of, frontends())
	s.only(s.outside, of, externals(), s.near)
	s.both(s.outside, of, []frontend{clusterIP})
}

func checkExternalLocalWithoutEndpoint(_ *testing.T, s *stage) {
	of := s.next()
	of.ExternalLocal = true
	s.serve(of, ready(s.far)...)
	s.only(s.pod, of, frontends(), s.far)
	s.only(s.here, of, frontends(), s.far)
	s.only(s.outside, of, []frontend{clusterIP}, s.far)
	s.mayDrop("drop_no_local_endpoints")
	s.silent(s.outside, of, externals())
}

func terminating(p *lab.Pod) lab.Endpoint {
	return lab.Endpoint{Pod: p, NotReady: true, Terminating: true}
}

// The node's last endpoint serves on while it terminates, though other nodes have ready ones.
func checkExternalLocalTerminating(_ *testing.T, s *stage) {
	of := s.next()
	of.ExternalLocal = true
	s.serve(of, append(ready(s.far), terminating(s.near))...)
	s.only(s.pod, of, frontends(), s.far)
	s.only(s.outside, of, externals(), s.near)
}

func checkTerminating(_ *testing.T, s *stage) {
	of := s.next()
	s.serve(of, terminating(s.near))
	for _, client := range s.clients() {
		s.only(client, of, frontends(), s.near)
	}
}

func checkInternalLocal(_ *testing.T, s *stage) {
	of := s.next()
	of.InternalLocal = true
	of.publish(ready(s.near, s.far)...)
	for _, client := range s.clients() {
		s.both(client, of, externals())
		s.only(client, of, []frontend{clusterIP}, s.near)
	}
}

func checkInternalLocalWithoutEndpoint(_ *testing.T, s *stage) {
	of := s.next()
	of.InternalLocal = true
	of.publish(ready(s.far)...)
	s.by(of, nodePort).awaitServer(s.pod, s.far.Name)
	s.mayDrop("drop_no_local_endpoints")
	for _, client := range s.clients() {
		s.only(client, of, externals(), s.far)
		s.silent(client, of, []frontend{clusterIP})
	}
}

// Ranges name who may reach load balancer addresses, clients in the cluster included; other addresses are not their subject.
func checkSourceRanges(_ *testing.T, s *stage) {
	s.mayDrop("drop_source_range")
	others := []frontend{clusterIP, nodePort, externalIP}
	for _, allowed := range s.clients() {
		of := s.next()
		for _, six := range []bool{false, true} {
			a := allowed.Address(six)
			of.SourceRanges = append(of.SourceRanges, netip.PrefixFrom(a, a.BitLen()))
		}
		of.publish(ready(s.near)...)
		s.by(of, nodePort).awaitServer(s.pod, s.near.Name)
		for _, client := range s.clients() {
			s.only(client, of, others, s.near)
			if client == allowed {
				s.only(client, of, []frontend{loadBalancer}, s.near)
			} else {
				s.silent(client, of, []frontend{loadBalancer})
			}
		}
	}
}

// A load balancer on the node itself forwards with its own address, to its own address.
func checkSourceRangeOfTheNodeItself(t *testing.T, s *stage) {
	s.mayDrop("drop_source_range")
	for _, excepted := range []bool{true, false} {
		of := s.next()
		for _, six := range []bool{false, true} {
			in := s.far.Node.Address(six)
			if excepted {
				in = s.here.Address(six)
			}
			of.SourceRanges = append(of.SourceRanges, netip.PrefixFrom(in, in.BitLen()))
		}
		of.publish(ready(s.near)...)
		s.by(of, nodePort).awaitServer(s.pod, s.near.Name)
		for _, w := range ways() {
			to := s.by(of, loadBalancer).address(w.six)
			if err := s.here.Own(to.Addr()); err != nil && !errors.Is(err, syscall.EEXIST) {
				t.Fatal(err)
			}
			answer, err := s.here.Ask(context.Background(), w.network, to, lab.DialOptions{Local: to.Addr()})
			if excepted && (err != nil || answer.Server != s.near.Name || answer.Client.Addr() != to.Addr()) {
				t.Errorf("%s: %+v, %v", w, answer, err)
			}
			if !excepted && !errors.Is(err, syscall.EHOSTUNREACH) {
				t.Errorf("%s is let in: %+v, %v", w, answer, err)
			}
		}
	}
}

// ipMode Proxy, or a hostname alone: the load balancer is to see the packets, so they leave the node. Here it serves itself.
func checkProxyMode(t *testing.T, s *stage) {
	of := s.next()
	balancer := s.outsider(lab.OutsideOptions{Name: "balancer"})
	addresses := []netip.Addr{of.LoadBalancers[0].IP, of.LoadBalancers[1].IP}
	for i := range of.LoadBalancers {
		of.LoadBalancers[i].Proxy = true
	}
	of.LoadBalancers = append(of.LoadBalancers, lab.LoadBalancer{Hostname: "balancer.example.org"})
	if err := errors.Join(balancer.Own(addresses...), balancer.Attract(addresses...)); err != nil {
		t.Fatal(err)
	}
	if _, err := balancer.Serve(servicePort, addresses...); err != nil {
		t.Fatal(err)
	}
	s.serve(of, ready(s.near)...)
	for _, client := range s.clients() {
		s.only(client, of, []frontend{clusterIP, nodePort, externalIP}, s.near)
		for _, w := range ways() {
			if answer, err := s.by(of, loadBalancer).ask(client, w); err != nil || answer.Server != balancer.Name {
				t.Errorf("%s: %+v, %v", w, answer, err)
			}
		}
	}
}

func checkRefused(_ *testing.T, s *stage) {
	of := s.next()
	s.serve(of, ready(s.near)...)
	for _, endpoints := range [][]lab.Endpoint{{notReady(s.near)}, {}} {
		of.publish(endpoints...)
		for _, client := range s.clients() {
			for _, kind := range frontends() {
				for _, w := range ways() {
					asked := s.by(of, kind)
					s.await(fmt.Sprintf("%s is refused by %s over %s", client, kind, w), func() bool { return refused(asked.try(client, w)) })
				}
			}
		}
	}
}

// service-semantics 1.6, for clients other than pods. The node's own are no worse off: nobody is there.
func checkUnknownPort(t *testing.T, s *stage) {
	of := s.next()
	s.serve(of, ready(s.near)...)
	for _, client := range s.clients() {
		for _, w := range ways() {
			unknown := netip.AddrPortFrom(of.address(w.six).Addr(), servicePort+1)
			if answer, err := client.Ask(context.Background(), w.network, unknown, lab.DialOptions{}); !refused(answer, err) {
				t.Errorf("%s over %s: %+v, %v; want a refusal", client, w, answer, err)
			}
		}
	}
}
