// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/tests/cluster/kube"
)

// A cluster whose kube-proxy is a DaemonSet is handed over by the commands of docs/install.md, one after the other: `make kube-handover`.
// Connections of before are held until kube-proxy's rules go, those of after through that, and new ones are made all the time.
func TestAKubeProxyDaemonSetHandsItsClusterOverWithoutALostConnection(t *testing.T) {
	wanted(t, "NEARLB_HANDOVER", "make kube-handover")
	s := start(t, kube.PointToPoint)
	must(t, s.InstallKubeProxy(t.Context()))
	s.kubectl("-n", "kube-system", "rollout", "status", "daemonset/kube-proxy", limit)
	s.prepare()
	s.serve()
	s.outside.keepAsking(t)
	makers := s.makeAll()

	s.kubectl("apply", "-k", s.overlay("handover"))
	s.awaitAgents()
	s.awaitAnswers()
	s.kubectl("-n", "kube-system", "delete", "daemonset", "kube-proxy")
	s.kubectl("-n", "kube-system", "wait", "--for=delete", "pods", "-l", "k8s-app=kube-proxy", limit)
	s.awaitAnswers()
	s.kubectl("apply", "-k", s.overlay("handover-alone"))
	s.awaitAgents()
	s.awaitAnswers() // of those that kube-proxy's rules translate
	s.holdOthers()
	s.awaitNoneLeft()
	s.debugNodes(kube.KubeProxy, "/kubernetes", "kube-proxy", "--cleanup")
	s.awaitAnswers()
	s.kubectl("apply", "-k", s.overlay("replace-kube-proxy"))
	s.awaitAgents()
	s.awaitAnswers()
	makers.end(nil)
	for _, n := range s.Nodes {
		left, err := n.Run(t.Context(), nil, "sh", "-c", "nft list tables | grep kube-proxy; true")
		if err != nil || strings.TrimSpace(left) != "" {
			t.Errorf("on %s is left: %v %s", n.Name, err, left)
		}
	}
}

// makeAll has connections made to the Services of the soak, once these answer on each node.
func (s *smoke) makeAll() *makers {
	s.kubectl("apply", "-f", "testdata/soak.yaml")
	s.kubectl("rollout", "status", "deployment/shop", limit)
	for _, n := range s.Nodes {
		for _, network := range []string{"tcp", "udp"} {
			for _, a := range []netip.Addr{n.V4, n.V6} {
				s.await("from outside, "+network+" "+a.String(), func() error { return s.outside.makeOne(network, netip.AddrPortFrom(a, 30090)) })
			}
		}
	}
	return newMakers(s)
}

// holdOthers ends the connections that are held, and has new ones held.
func (s *smoke) holdOthers() {
	s.kubectl("delete", "-f", "testdata/clients.yaml")
	must(s.T, s.outside.drop())
	s.outside.hold(s)
	s.kubectl("apply", "-f", "testdata/clients.yaml")
	s.awaitAnswers()
}

// awaitNoneLeft waits until `nearlb handover` says on each node that no connection needs kube-proxy's rules, which are there still.
func (s *smoke) awaitNoneLeft() {
	pods := strings.Fields(s.kubectl("-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=nearlb", "-o", "name"))
	for _, pod := range pods {
		s.await(pod, func() error {
			out, err := s.Kubectl(s.Context(), "-n", "kube-system", "exec", pod, "-c", "agent", "--", "nearlb", "handover", "-o", "json")
			if err != nil {
				return err
			}
			var state struct {
				KubeProxy struct {
					Rules       []string
					Connections struct{ TCP, SCTP int }
				}
			}
			if err := json.Unmarshal([]byte(out), &state); err != nil {
				return err
			}
			if len(state.KubeProxy.Rules) == 0 || state.KubeProxy.Connections.TCP+state.KubeProxy.Connections.SCTP > 0 {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
	}
}
