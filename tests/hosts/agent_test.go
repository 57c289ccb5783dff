// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/lab"
)

// awaitServing polls until the agent that runs on a node has published every object, and every device there is has programs.
func (c *cluster) awaitServing(node int) {
	c.t.Helper()
	pid := c.agents[node].PID()
	c.await(fmt.Sprintf("agent %d serves", pid), func() bool {
		status, err := agent.ReadStatus(c.LockDir(), c.nodes[node].PinPath())
		return err == nil && status.PID == pid && status.State == agent.Serving && !status.LastSync.IsZero() && attached(c.nodes[node], status.Devices)
	})
}

// attached says whether both programs are on the node's uplink and on the device of each of its pods.
func attached(n *lab.Node, rows []attach.DeviceRow) bool {
	lacks := map[string]int{lab.Uplink: 2}
	for _, p := range n.Pods() {
		lacks[p.Device] = 2
	}
	for _, row := range rows {
		if row.Error == "" && row.Method != "" {
			lacks[row.Device]--
		}
	}
	for _, programs := range lacks {
		if programs > 0 {
			return false
		}
	}
	return true
}
