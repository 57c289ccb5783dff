// SPDX-License-Identifier: Apache-2.0

// Package hosts tests nearlb with real sockets: clusters of network namespaces, real agents as processes, real TCP and
// UDP connections through the programs on the pods' devices. Each test has its own cluster, or a part of one that it shares (shared_test.go).
package hosts

import (
	"fmt"
	"os"
	"testing"

	"github.com/nearlb/nearlb/pkg/cli"
)

// runAsCLI has this test binary be the nearlb program: agents are started from it, so that they are always of the code
// under test.
const runAsCLI = "NEARLB_TEST_RUN_CLI"

func TestMain(m *testing.M) {
	if os.Getenv(runAsCLI) != "" {
		os.Exit(cli.Main(os.Args[1:]))
	}
	status := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	os.Exit(status)
}
