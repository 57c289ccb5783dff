// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Policy Local drops where the node has no endpoint. With the annotation the cluster's endpoints answer there instead, which
// clients off the node reach by SNAT; the node's own are alone again as soon as there are any.
func TestLocalFallbackAnswersWherePolicyLocalDrops(t *testing.T) {
	s := onStage(t, options{lab: lab.Options{Netfilter: true}})
	s.mayDrop("drop_no_local_endpoints")
	s.part("external policy", checkExternalFallback)
	s.part("internal policy", checkInternalFallback)
}

// fallback switches the annotation and publishes the Service with these endpoints.
func fallback(of *service, on bool, endpoints ...lab.Endpoint) {
	of.Annotations = map[string]string{}
	if on {
		of.Annotations["nearlb.io/local-fallback"] = "true"
	}
	of.publish(endpoints...)
}

// becomesSilent polls until nobody answers the client.
func (s *stage) becomesSilent(client host, of *service, kind frontend) {
	s.t.Helper()
	s.await(fmt.Sprintf("nobody answers %s by %s", client, kind), func() bool {
		_, err := s.by(of, kind).inVain(client, way{"tcp", false})
		return timedOut(err)
	})
}

func checkExternalFallback(_ *testing.T, s *stage) {
	of := s.next()
	of.ExternalLocal = true
	s.serve(of, ready(s.far)...)
	s.silent(s.outside, of, externals())
	answers := func(server *lab.Pod) {
		for _, kind := range externals() {
			s.by(of, kind).awaitServer(s.outside, server.Name)
		}
		s.only(s.outside, of, externals(), server)
	}
	fallback(of, true, ready(s.far)...)
	answers(s.far)
	fallback(of, true, ready(s.near, s.far)...)
	answers(s.near)
	fallback(of, true, ready(s.far)...)
	answers(s.far)
	fallback(of, false, ready(s.far)...)
	s.becomesSilent(s.outside, of, nodePort)
}

func checkInternalFallback(_ *testing.T, s *stage) {
	of := s.next()
	of.InternalLocal = true
	of.publish(ready(s.far)...)
	s.by(of, nodePort).awaitServer(s.pod, s.far.Name)
	for _, client := range s.clients() {
		s.silent(client, of, []frontend{clusterIP})
	}
	fallback(of, true, ready(s.far)...)
	for _, client := range s.clients() {
		s.by(of, clusterIP).awaitServer(client, s.far.Name)
		s.only(client, of, []frontend{clusterIP}, s.far)
	}
	fallback(of, false, ready(s.far)...)
	s.becomesSilent(s.pod, of, clusterIP)
}
