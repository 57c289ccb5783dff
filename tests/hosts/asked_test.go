// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

// A server hangs, and its sockets' next questions go to the other one, where the Service asks for that: the socket stays, and so does its port.
func TestAClientWhoseServerHangsAsksTheNextOne(t *testing.T) {
	s := onStage(t, options{})
	of := s.next()
	of.Annotations = map[string]string{"nearlb.io/udp-retry": "3"}
	s.serve(of, ready(s.near)...)
	of.publish(ready(s.near, s.far)...)
	var asked []*lab.Conn
	for _, client := range []host{s.pod, s.outside} {
		for _, six := range []bool{false, true} {
			asked = append(asked, s.asksOf(of, client, six, s.far))
		}
	}
	if err := s.far.Netfilter(fmt.Sprintf(`
table inet hang {
	chain input { type filter hook input priority filter; udp dport %d drop; }
}`, targetPort)); err != nil {
		t.Fatal(err)
	}
	for _, socket := range asked {
		s.await("the other server answers "+socket.Local().String(), func() bool {
			answer, err := socket.Who()
			return err == nil && answer.Server == s.near.Name
		})
	}
	if got := s.verdicts(0)["translate_retry"]; got < uint64(len(asked)) {
		t.Errorf("%d datagrams went to another server, want one of each of %d sockets", got, len(asked))
	}
}

// asksOf is a socket whose questions a server answers. It waits for an answer no longer than a client that asks again does.
func (s *stage) asksOf(of *service, client host, six bool, server *lab.Pod) (found *lab.Conn) {
	s.t.Helper()
	s.await("the server is asked by "+client.String(), func() bool {
		conn, err := client.Dial(context.Background(), "udp", s.by(of, loadBalancer).address(six), lab.DialOptions{LocalPort: s.port(), Patience: 400 * time.Millisecond})
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { conn.Close() })
		answer, err := conn.Who()
		found = conn
		return err == nil && answer.Server == server.Name
	})
	return found
}
