// SPDX-License-Identifier: Apache-2.0

// Command nearlb is a Kubernetes Service load balancer in eBPF: the agent of a node, and the commands that show and explain
// what is in its kernel.
package main

import (
	"os"

	"github.com/nearlb/nearlb/pkg/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
