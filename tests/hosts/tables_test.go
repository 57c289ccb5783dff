// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/rig"
)

// read reads the tables of a node's agent. Before the agent has loaded its programs there are none.
func (c *cluster) read(node int, f func(*maps.Reader) error) {
	c.t.Helper()
	c.mayBeNone(node, rig.Read(c.Lab, c.nodes[node], f))
}

func (c *cluster) mayBeNone(node int, err error) {
	c.t.Helper()
	if err != nil && !errors.Is(err, bpf.ErrNoAgent) {
		c.t.Errorf("read tables of %s: %v", c.nodes[node].Name, err)
	}
}

// dump is the canonical text of a node's tables.
func (c *cluster) dump(node int) string {
	c.t.Helper()
	text, err := rig.Dump(c.Lab, c.nodes[node])
	c.mayBeNone(node, err)
	return text
}

// verdicts are the packets of a node by verdict name, over all hooks: since the test has the cluster.
func (c *cluster) verdicts(node int) map[string]uint64 {
	c.t.Helper()
	out, err := rig.Verdicts(c.Lab, c.nodes[node])
	c.mayBeNone(node, err)
	if c.mine != nil && node < len(c.mine.before) {
		for verdict, packets := range c.mine.before[node] {
			out[verdict] -= packets
		}
	}
	return out
}

// backends are a node's backends by address:port/protocol.
func (c *cluster) backends(node int) map[string]maps.BackendRow {
	c.t.Helper()
	out := map[string]maps.BackendRow{}
	c.read(node, func(r *maps.Reader) error {
		for row, err := range r.Backends() {
			if err != nil {
				return err
			}
			out[fmt.Sprintf("%s:%d/%s", row.Address, row.BackendPort, row.Protocol)] = row
		}
		return nil
	})
	return out
}
