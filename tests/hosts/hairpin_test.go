// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// C15: a pod reaches itself through its own Service.
func TestAPodReachesItselfThroughItsService(t *testing.T) {
	onLinksAndBridge(t, func(t *testing.T, c *cluster) {
		self := c.server(0, "self")
		s := c.service(1)
		s.publish(ready(self)...)
		s.awaitServer(self, self.Name)
		for _, w := range ways() {
			conn := s.dial(self, w)
			answer, err := conn.Who()
			if err != nil {
				t.Fatalf("%s: %v", w, err)
			}
			if answer.Client.Addr() == self.Address(w.six) || conn.Remote() != s.address(w.six) {
				t.Errorf("%s: the pod as server sees %s, as client %s", w, answer.Client, conn.Remote())
			}
			checkContent(t, conn, w, self.Name)
		}
	})
}

func checkContent(t *testing.T, conn *lab.Conn, w way, server string) {
	t.Helper()
	if w.network == "udp" {
		checkDatagrams(t, conn, server)
		return
	}
	if err := transfer(conn, 8*megabyte); err != nil {
		t.Error(fmt.Errorf("%s: %w", w, err))
	}
}
