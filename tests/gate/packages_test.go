// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A user's machine may have containerd from Docker, whose package Debian's would have apt remove.
func TestWhatAMachineHasFromElsewhereIsNotReplaced(t *testing.T) {
	stubs := t.TempDir()
	asked := filepath.Join(t.TempDir(), "asked")
	for name, script := range map[string]string{
		"containerd": "", "runc": "",
		"dpkg-query": "exit 1", // knows none of Debian's packages
		"apt-get":    `echo "$@" >>` + asked,
	} {
		if err := os.WriteFile(filepath.Join(stubs, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	make := exec.Command("make", "-s", "-C", "../..", "kube-packages", "CNI=/nowhere")
	make.Env = append(os.Environ(), "PATH="+stubs+":"+os.Getenv("PATH"))
	if out, err := make.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(asked)
	if err != nil {
		t.Fatal(err)
	}
	var installs []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "install ") {
			installs = append(installs, line)
		}
	}
	if len(installs) != 1 {
		t.Fatalf("apt-get is asked %q, want one installation", text)
	}
	words := " " + strings.TrimSpace(installs[0]) + " "
	if !strings.Contains(words, " containernetworking-plugins ") || strings.Contains(words, " containerd ") || strings.Contains(words, " runc ") {
		t.Errorf("what is there is installed, or what is missing is not:%s", words)
	}
	if !strings.Contains(words, " --no-remove ") {
		t.Errorf("apt may remove packages:%s", words)
	}
}
