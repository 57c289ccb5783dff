// SPDX-License-Identifier: Apache-2.0

// Command kubectl-nearlb is the plugin `kubectl nearlb`: see docs/kubectl.md.
package main

import (
	"os"

	"github.com/nearlb/nearlb/pkg/kubectl"
)

func main() { os.Exit(kubectl.Main(os.Args[1:])) }
