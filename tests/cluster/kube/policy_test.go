// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// web leads to a server on each node (testdata/servers.yaml).
var web = []netip.Addr{netip.MustParseAddr("10.96.0.80"), netip.MustParseAddr("fd96::80")}

// keepPolicies: an engine that keeps NetworkPolicies sees pods' own addresses on both sides of a connection to a Service, that of the
// server where the client leaves its pod, and that of the client where it comes to the server.
func keepPolicies(s *smoke) {
	s.kubectl("apply", "-f", "testdata/policy-clients.yaml")
	s.kubectl("wait", "--for=condition=Ready", "pods", "-l", "role in (friend, stranger, caged)", limit)
	toFar, toWeb := urls(80, far...), urls(80, web...)
	for _, role := range []string{"friend", "stranger", "caged"} {
		s.reaches(role, "web-far ", toFar)
		s.reaches(role, "web-", toWeb)
	}
	s.kubectl("apply", "-f", "testdata/policies.yaml")
	s.isCutOff("stranger", toFar)
	s.isCutOff("caged", toWeb)
	s.reaches("friend", "web-far ", toFar)
	s.reaches("caged", "web-far ", toFar)
	s.reaches("stranger", "web-", toWeb)
	s.kubectl("delete", "-f", "testdata/policies.yaml")
	s.reaches("stranger", "web-far ", toFar)
	s.reaches("caged", "web-", toWeb)
}

// at are the nodes that each role has a pod on: n3 has the server.
var at = []string{"n1", "n3"}

func (s *smoke) reaches(role, want string, to []string) {
	s.Helper()
	for _, node := range at {
		s.fromPod(role+"-"+node, want, to...)
	}
}

// isCutOff waits until no question is answered, one by one.
func (s *smoke) isCutOff(role string, from []string) {
	s.Helper()
	for _, node := range at {
		pod := role + "-" + node
		s.await(pod+" is cut off", func() error {
			var answered []string
			for _, url := range from {
				if out, err := s.Kubectl(s.Context(), "exec", pod, "--", "/workload", "ask", "-within", "3s", url); err == nil {
					answered = append(answered, strings.TrimSpace(out))
				}
			}
			if len(answered) > 0 {
				return fmt.Errorf("answered: %s", strings.Join(slices.Compact(answered), "; "))
			}
			return nil
		})
	}
}
