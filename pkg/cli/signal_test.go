// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
)

// commandLine in the environment makes the command line of the test binary, so that it can be interrupted.
const commandLine = "NEARLB_TEST_COMMAND_LINE"

func TestMain(m *testing.M) {
	if text := os.Getenv(commandLine); text != "" {
		os.Exit(Main(strings.Fields(text)))
	}
	os.Exit(m.Run())
}

func TestASignalEndsACommandThatWaitsForItsInput(t *testing.T) {
	for _, number := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		// A shell that runs this in the background has it ignored by all that is started; what is caught is not ignored.
		caught := make(chan os.Signal, 1)
		signal.Notify(caught, number)
		defer signal.Stop(caught)
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), commandLine+"=plan -f -")
		input, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer input.Close()
		said, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(said).ReadString('\n'); err != nil || !strings.Contains(line, "no --node") { // said before it reads
			t.Errorf("it said %q, %v", line, err)
		}
		if err := cmd.Process.Signal(number); err != nil {
			t.Error(err)
		}
		cmd.Wait()
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != number {
			t.Errorf("%v: it ended with %v", number, cmd.ProcessState)
		}
	}
}
