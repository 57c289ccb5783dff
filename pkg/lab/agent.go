// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"path/filepath"
)

// AgentOptions say how agents are started.
type AgentOptions struct {
	Command    []string // program and leading arguments, up to and including "agent"
	Args       []string // further flags
	Env        []string
	Kubeconfig string // of the API server to follow; "": the lab's manifests
}

// PinPath is where the node's agent keeps its maps: see Mounted.
func (n *Node) PinPath() string { return filepath.Join(n.lab.BPFDir(), n.Name) }

// StartAgent runs `nearlb agent` on the node over the lab's manifests, or an API server. It returns when the process runs, which is before
// it serves.
func (n *Node) StartAgent(options AgentOptions) (*Process, error) {
	objects, from := "--manifests", n.lab.Manifests.Dir
	if options.Kubeconfig != "" {
		objects, from = "--kubeconfig", options.Kubeconfig
	}
	argv := append([]string(nil), options.Command...)
	argv = append(argv,
		"--node-name", n.Name,
		objects, from,
		"--pin-path", n.PinPath(),
		"--lock-dir", n.lab.LockDir(),
	)
	if n.Cgroup() == "" {
		argv = append(argv, "--socket-lb=off")
	} else {
		argv = append(argv, "--cgroup", n.Cgroup())
	}
	return n.Start("agent", append(argv, options.Args...), options.Env...)
}
