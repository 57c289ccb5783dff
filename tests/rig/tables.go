// SPDX-License-Identifier: Apache-2.0

// Package rig is what tests with a lab share: how they look at what the agent of a node did, and at the machine that they measure on.
package rig

import (
	"strings"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/maps"
)

// Tables opens the tables of a node's agent, to write too. It is bpf.ErrNoAgent before the agent has loaded its programs.
func Tables(l *lab.Lab, n *lab.Node, f func(*bpf.NearlbMaps) error) error {
	return l.Mounted(func() error {
		tables, err := bpf.OpenMaps(n.PinPath(), false)
		if err != nil {
			return err
		}
		defer tables.Close()
		return f(tables)
	})
}

// Read reads the tables of a node's agent, as the CLI does.
func Read(l *lab.Lab, n *lab.Node, f func(*maps.Reader) error) error {
	return Tables(l, n, func(tables *bpf.NearlbMaps) error {
		r, err := maps.NewReader(tables)
		if err != nil {
			return err
		}
		defer r.Close()
		return f(r)
	})
}

// Dump is the canonical text of a node's tables.
func Dump(l *lab.Lab, n *lab.Node) (string, error) {
	var text strings.Builder
	err := Read(l, n, func(r *maps.Reader) error { return r.Dump(&text) })
	return text.String(), err
}

// Verdicts are the packets of a node by verdict name, over all hooks: "drop_flows_full".
func Verdicts(l *lab.Lab, n *lab.Node) (map[string]uint64, error) {
	out := map[string]uint64{}
	err := Read(l, n, func(r *maps.Reader) error {
		for row, err := range r.Verdicts() {
			if err != nil {
				return err
			}
			out[row.Verdict+"_"+strings.ReplaceAll(row.Reason, "-", "_")] += row.Packets
		}
		return nil
	})
	return out, err
}
