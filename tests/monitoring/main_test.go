// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"os"
	"testing"

	"github.com/nearlb/nearlb/pkg/cli"
)

// runAsCLI has this test binary be the nearlb program: agents are started from it.
const runAsCLI = "NEARLB_TEST_RUN_CLI"

func TestMain(m *testing.M) {
	if os.Getenv(runAsCLI) != "" {
		os.Exit(cli.Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// directory is where the tested files are.
const directory = "../../manifests/monitoring/"

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
