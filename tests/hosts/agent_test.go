// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"

	"github.com/nearlb/nearlb/pkg/agent"
)

// awaitServing polls until the agent that runs on a node, has published every object.
func (c *cluster) awaitServing(node int) {
	c.t.Helper()
	pid := c.agents[node].PID()
	c.await(fmt.Sprintf("agent %d serves", pid), func() bool {
		status, err := agent.ReadStatus(c.LockDir(), c.nodes[node].PinPath())
		return err == nil && status.PID == pid && status.State == agent.Serving && !status.LastSync.IsZero()
	})
}
