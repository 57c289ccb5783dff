// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func TestAStatusReadsBackAndSaysWhetherItsAgentRuns(t *testing.T) {
	dir := t.TempDir()
	path := StatusPath(dir, "/sys/fs/bpf/nearlb")
	if _, err := ReadStatus(dir, "/sys/fs/bpf/nearlb"); !errors.Is(err, ErrNoStatus) {
		t.Errorf("without a file: %v", err)
	}
	s := Status{Version: "v1", PID: os.Getpid(), State: Serving}
	check := func(when string, running bool) {
		t.Helper()
		text, err := s.text()
		if err == nil {
			err = replaceFile(path, text)
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := ReadStatus(dir, "/sys/fs/bpf/../bpf/nearlb/") // another spelling of the path
		if err != nil || got.Version != "v1" || got.Running != running {
			t.Errorf("%s: got %+v, %v; want running %v", when, got, err, running)
		}
	}
	check("of this process", true)
	old := time.Now().Add(-time.Minute)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if got, _ := ReadStatus(dir, "/sys/fs/bpf/nearlb"); !got.Stale {
		t.Error("a status that nobody renews does not count as stale")
	}
	s.PID = 1 << 30 // no such process
	check("of a process that is gone", false)
	s.PID, s.State = os.Getpid(), Stopped
	check("of an agent that stopped", false)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v, %v; want the status alone", entries, err)
	}
}

func TestInAnotherPidNamespaceTheAgeCounts(t *testing.T) {
	now := time.Now()
	s := statusFile{Status: Status{PID: os.Getpid(), Written: now.Add(-statusEvery)}, PIDNamespace: "pid:[1]"}
	if !s.alive(now) {
		t.Error("a fresh status is of no agent")
	}
	if s.alive(now.Add(time.Minute)) {
		t.Error("an old status is of an agent that runs")
	}
}

// An agent that works renews its file by whatever the clock says now. Once the clock was set back, a file of the time before tells of nobody.
func TestAFileOfAClockThatWasSetBackIsOld(t *testing.T) {
	now := time.Now()
	s := statusFile{Status: Status{PID: os.Getpid(), Written: now.Add(time.Hour)}, PIDNamespace: "pid:[1]"}
	if s.alive(now) || !s.old(now) {
		t.Error("a status of an hour ahead is of an agent that runs")
	}
	if s.Written = now.Add(statusEvery); !s.alive(now) || s.old(now) {
		t.Error("an agent has no time to renew its file when the clock is set back a little")
	}
}

func TestOptionsThatCannotWorkAreRefusedByTheirFlag(t *testing.T) {
	good := DefaultOptions()
	good.NodeName = "n1"
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for flag, spoil := range map[string]func(*Options){
		"--node-name":       func(o *Options) { o.NodeName = "" },
		"--manifests":       func(o *Options) { o.Manifests, o.Kubeconfig = "m", "k" },
		"--pin-path":        func(o *Options) { o.PinPath = "" },
		"--lock-dir":        func(o *Options) { o.LockDir = "" },
		"--loopback4":       func(o *Options) { o.Loopback4 = good4in6 },
		"--loopback6":       func(o *Options) { o.Loopback6 = good4in6 },
		"--audit-interval":  func(o *Options) { o.AuditEvery = 0 },
		"--debounce":        func(o *Options) { o.Debounce = -1 },
		"--health-address":  func(o *Options) { o.HealthAddress = "10256" },
		"--metrics-address": func(o *Options) { o.MetricsAddress = "127.0.0.1:70000" },
		"--pod-devices":     func(o *Options) { o.PodDevices = []string{"veth["} },
		"--kubeconfig":      func(o *Options) { o.Kubeconfig = "/nonexistent" },
		"nodeport":          func(o *Options) { o.NodePortAddresses = []string{"primary", "10.0.0.0/8"} },
	} {
		o := good
		spoil(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: got error %v", flag, err)
		}
	}
}
