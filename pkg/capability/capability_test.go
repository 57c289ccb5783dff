// SPDX-License-Identifier: Apache-2.0

package capability_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/capability"
	"github.com/nearlb/nearlb/tests/privileged"
)

// asChild in the environment has the test binary drop what it has, and say what came of it.
const asChild = "NEARLB_TEST_KEEP"

func TestMain(m *testing.M) {
	if os.Getenv(asChild) != "" {
		child()
		return
	}
	os.Exit(m.Run())
}

func child() {
	var threads sync.WaitGroup
	threads.Add(4)
	for range 4 { // threads that sleep in the kernel are asked as well
		go func() { runtime.LockOSThread(); threads.Done(); select {} }()
	}
	threads.Wait()
	kept, err := capability.Keep(capability.Of(unix.CAP_BPF, unix.CAP_NET_ADMIN))
	fmt.Println(kept.Names(), err)
	tasks, _ := filepath.Glob("/proc/self/task/*/status")
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "Cap") || strings.HasPrefix(line, "NoNewPrivs") {
				fmt.Print(line)
			}
		}
	}
	out, err := exec.Command("grep", "CapEff", "/proc/self/status").Output()
	if err != nil {
		out = []byte(err.Error())
	}
	fmt.Printf("started %s", out)
}

func TestWhatIsNotKeptIsGoneFromEveryThreadAndFromWhatTheProcessStarts(t *testing.T) {
	privileged.Require(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asChild+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if lines[0] != "[CAP_NET_ADMIN CAP_BPF] <nil>" {
		t.Errorf("kept %s", lines[0])
	}
	want := map[string]string{"CapInh:": "0", "CapPrm:": "8000001000", "CapEff:": "8000001000", "CapBnd:": "8000001000", "CapAmb:": "0", "NoNewPrivs:": "1"}
	seen := 0
	for _, line := range lines[1:] {
		fields := strings.Fields(strings.TrimPrefix(line, "started "))
		if len(fields) != 2 || strings.TrimLeft(fields[1], "0") != strings.TrimLeft(want[fields[0]], "0") {
			t.Errorf("%s, want %v", line, want)
		}
		seen++
	}
	if seen < 6*4+1 {
		t.Errorf("%d lines of threads:\n%s", seen, out)
	}
}

func TestASetPrintsTheKernelsNames(t *testing.T) {
	for want, set := range map[string]capability.Set{
		"[]":                                  0,
		"[CAP_CHOWN]":                         capability.Of(unix.CAP_CHOWN),
		"[CAP_NET_ADMIN CAP_PERFMON CAP_BPF]": capability.Of(unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_NET_ADMIN),
		"[CAP_CHECKPOINT_RESTORE CAP_63]":     capability.Of(unix.CAP_CHECKPOINT_RESTORE, 63),
	} {
		if got := fmt.Sprint(set.Names()); got != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
}
