// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Of four pods two have their port closed, one on each node. No client hears of it where the Service asks for that, nor does one wait: its SYN went to
// the next pod at once.
func TestARefusedConnectionGoesToTheNextBackendAtOnce(t *testing.T) {
	for bridge, name := range podNetworks {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // beside the other kind
			s := onStage(t, options{bridge: bridge})
			closed := []*lab.Pod{s.cluster.pod(0, "closed-near"), s.cluster.pod(1, "closed-far")}
			of := s.next()
			s.serve(s.next(), ready(s.far)...)
			of.Annotations = map[string]string{"nearlb.io/retry-refused": "true"}
			of.publish(ready(s.near, s.far, closed[0], closed[1])...)
			of.awaitFrontends()
			for _, client := range []host{s.pod, s.outside} {
				for _, six := range []bool{false, true} {
					s.connectsAtOnce(of, client, six)
				}
			}
		})
	}
}

// connectsAtOnce opens a hundred connections of a client, of which some are refused on the way.
func (s *stage) connectsAtOnce(of *service, client host, six bool) {
	s.t.Helper()
	before := s.verdicts(0)["translate_refused"]
	var crowd errgroup.Group
	for range 100 {
		crowd.Go(func() error {
			conn, err := client.Dial(context.Background(), "tcp", s.by(of, loadBalancer).address(six), lab.DialOptions{LocalPort: s.port()})
			if err != nil {
				return err
			}
			defer conn.Close()
			if n := retransmits(s.t, conn); n > 0 {
				return fmt.Errorf("it had to send %d packets again", n)
			}
			answer, err := conn.Who()
			if err == nil && answer.Server != s.near.Name && answer.Server != s.far.Name {
				err = fmt.Errorf("%s answers", answer.Server)
			}
			return err
		})
	}
	if err := crowd.Wait(); err != nil {
		s.t.Errorf("%s, six %v: %v", client, six, err)
	}
	if refused := s.verdicts(0)["translate_refused"] - before; refused < 10 {
		s.t.Errorf("%s, six %v: %d of 100 connections were refused on the way", client, six, refused)
	}
}
