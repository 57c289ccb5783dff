// SPDX-License-Identifier: Apache-2.0

// Package hosts tests nearlb with real sockets: clusters of network namespaces, real agents as processes, real TCP and
// UDP connections through the programs on the pods' devices. Each test has its own cluster.
package hosts

import (
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
	os.Exit(m.Run())
}
