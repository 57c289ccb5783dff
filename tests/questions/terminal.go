// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

// run has nearlb print on a terminal of so many columns, on the first node, and gives what it printed and the exit status.
func (w *world) run(columns int, command string) (printed string, status int, err error) {
	w.commands++
	shell := fmt.Sprintf("stty cols %d rows 50 -onlcr; exec %s %s", columns, w.program, command)
	p, err := w.nodes[0].Start(fmt.Sprintf("command-%d", w.commands), []string{"script", "-qec", shell, "/dev/null"},
		"NEARLB_PIN_PATH="+w.nodes[0].PinPath(), "NEARLB_LOCK_DIR="+w.lab.LockDir(), "TERM=xterm")
	if err != nil {
		return "", 0, err
	}
	<-p.Ended()
	said, err := os.ReadFile(p.Log)
	if err != nil {
		return "", 0, err
	}
	return w.plain(string(said)), p.ExitCode(), nil
}

// patience is long, so that only what never comes is a failure.
const patience = time.Minute

// until runs a command on a terminal of so many columns until it prints what is wanted.
func (w *world) until(columns int, command, wants string) (string, error) {
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		printed, status, err := w.run(columns, command)
		switch {
		case err != nil:
			return "", err
		case strings.Contains(printed, wants):
			return printed, nil
		case time.Now().After(end):
			return "", fmt.Errorf("nearlb %s: exit status %d, and no %q in\n%s", command, status, wants, printed)
		}
	}
}

// escapes are colours and what else a terminal does not show.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[a-zA-Z]|\r`)

// plain is what was on the terminal, with a node's usual directories in place of the namespaces' own.
func (w *world) plain(said string) string {
	said = escapes.ReplaceAllString(said, "")
	return strings.NewReplacer(w.nodes[0].PinPath(), "/sys/fs/bpf/nearlb", w.lab.LockDir(), "/run/nearlb", w.lab.Dir, "/tmp/lab").Replace(said)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
