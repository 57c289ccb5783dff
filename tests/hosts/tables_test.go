// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/maps"
)

// read opens the tables of a node's agent, as the CLI does. Before the agent has loaded its programs there are none.
func (c *cluster) read(node int, f func(*maps.Reader) error) {
	c.t.Helper()
	err := c.Mounted(func() error {
		tables, err := bpf.OpenMaps(c.nodes[node].PinPath(), true)
		if err != nil {
			return err
		}
		defer tables.Close()
		r, err := maps.NewReader(tables)
		if err != nil {
			return err
		}
		return f(r)
	})
	if err != nil && !errors.Is(err, bpf.ErrNoAgent) {
		c.t.Errorf("read tables of %s: %v", c.nodes[node].Name, err)
	}
}

// dump is the canonical text of a node's tables.
func (c *cluster) dump(node int) string {
	c.t.Helper()
	var text strings.Builder
	c.read(node, func(r *maps.Reader) error { return r.Dump(&text) })
	return text.String()
}

// verdicts are the packets of a node by verdict name, over all hooks.
func (c *cluster) verdicts(node int) map[string]uint64 {
	c.t.Helper()
	out := map[string]uint64{}
	c.read(node, func(r *maps.Reader) error {
		for row, err := range r.Verdicts() {
			if err != nil {
				return err
			}
			out[row.Verdict+"_"+strings.ReplaceAll(row.Reason, "-", "_")] += row.Packets
		}
		return nil
	})
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
