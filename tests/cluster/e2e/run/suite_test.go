// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"os/exec"
	"testing"
)

func TestTestProgramsAreAskedToEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// The first process tells the second nothing, as ginkgo.
	command := exec.CommandContext(ctx, "sh", "-c", `trap : INT; sh -c 'trap "echo cleaned; exit" INT; echo ready; while :; do sleep 0.1; done'; exit 0`)
	interruptible(command)
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, want := range []string{"ready", "cleaned"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("the second process says %q, want %q: %v", lines.Text(), want, lines.Err())
		}
		cancel() // once it is ready
	}
	_ = command.Wait() // "context canceled"
}
