// SPDX-License-Identifier: Apache-2.0

// Package faults breaks what nearlb works with, while real sockets use it: agents killed between two writes, tables that are
// full or damaged, devices that go, kernels and machines that lack something.
package faults

import (
	"os"
	"testing"

	"github.com/nearlb/nearlb/pkg/cli"
)

// runAsCLI has this test binary be the nearlb program.
const runAsCLI = "NEARLB_TEST_RUN_CLI"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(runAsCLI) != "":
		os.Exit(cli.Main(os.Args[1:]))
	case os.Getenv(runAsResolver) != "":
		os.Exit(lookUpMain(os.Args[1:]))
	case os.Getenv(runAsNobody) != "":
		os.Exit(denyMain(os.Args[1]))
	case os.Getenv(runAsWaiter) != "":
		os.Exit(waitMain(os.Args[1], os.Args[2], os.Args[3]))
	case os.Getenv(runAsAsker) != "":
		os.Exit(askMain(os.Args[1], os.Args[2]))
	case os.Getenv(mortalOptions) != "":
		os.Exit(mortalMain(os.Getenv(mortalOptions)))
	}
	os.Exit(m.Run())
}
