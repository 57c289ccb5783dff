// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"path/filepath"
)

// AgentOptions say how agents are started.
type AgentOptions struct {
	Command []string // program and leading arguments, up to and including "agent"
	Args    []string // further flags
	Env     []string
}

// PinPath is where the node's agent keeps its maps: see Mounted.
func (n *Node) PinPath() string { return filepath.Join(n.lab.BPFDir(), n.Name) }

// StartAgent runs `nearlb agent` on the node over the lab's manifests. It returns when the process runs, which is before
// it serves.
func (n *Node) StartAgent(options AgentOptions) (*Process, error) {
	argv := append([]string(nil), options.Command...)
	argv = append(argv,
		"--node-name", n.Name,
		"--manifests", n.lab.Manifests.Dir,
		"--pin-path", n.PinPath(),
		"--lock-dir", n.lab.LockDir(),
	)
	return n.Start("agent", append(argv, options.Args...), options.Env...)
}
