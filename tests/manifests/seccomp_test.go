// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/profiles/seccomp"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/daemonset"
	"github.com/nearlb/nearlb/tests/privileged"
)

// patience is long: only what never comes is a failure.
const patience = 3 * time.Minute

// RuntimeDefault is what Docker's own profile, from which containerd's comes, makes of the container's capabilities.
func TestTheAgentRunsUnderARuntimesDefaultSeccompProfile(t *testing.T) {
	privileged.Require(t)
	text, err := Kustomize("base")
	must(t, err)
	set, err := daemonset.Read(text)
	must(t, err)
	l, err := lab.New(lab.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	node, err := l.AddNode(lab.NodeOptions{Name: "n1"})
	must(t, err)
	must(t, l.Manifests.Write("node.yaml", node.Object()))
	pod := daemonset.Pod{Extra: map[string]string{"/manifests": l.Manifests.Dir}}
	pod.Program, err = daemonset.Program()
	must(t, err)
	pod.Host, err = daemonset.Hostlike(l, node)
	must(t, err)
	capabilities, err := set.Capabilities()
	must(t, err)
	// Profiles of runtimes that are a few years old lack this one (Debian 12 has containerd 1.6).
	handles := numbers(t)["name_to_handle_at"]
	pod.Calls = slices.DeleteFunc(allowed(t, capabilities), func(call uint32) bool { return call == handles })
	set.Agent.Args = append(set.Agent.Args, "--manifests=/manifests")

	process, err := set.Start(node, pod)
	must(t, err)
	if lab.Await(patience, func() bool {
		s, err := agent.ReadStatus(pod.Host["/run/nearlb"], daemonset.PinPath)
		return err == nil && s.PID == process.PID() && s.State == agent.Serving
	}) != nil {
		log, _ := os.ReadFile(process.Log)
		t.Fatalf("it does not serve:\n%s", log)
	}
	if s, err := agent.ReadStatus(pod.Host["/run/nearlb"], daemonset.PinPath); err != nil || len(s.Trouble) > 0 {
		t.Errorf("it has trouble: %v, %v", s.Trouble, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process.PID()))
	if err != nil || !strings.Contains(string(status), "Seccomp:\t2\n") {
		t.Errorf("it has no profile: %v", err)
	}
	for _, command := range []string{"status", "devices", "check"} {
		if out, err := set.Exec(node, pod, command); err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
	must(t, process.Stop())

	bpf := numbers(t)["bpf"]
	pod.Calls = slices.DeleteFunc(pod.Calls, func(call uint32) bool { return call == bpf })
	process, err = set.Start(node, pod)
	must(t, err)
	select {
	case <-process.Ended():
	case <-time.After(patience):
		t.Error("it runs without bpf(2) as well: the profile is none")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// allowed are the calls that the profile allows to a container with these capabilities. Its conditions on arguments, of clone and
// personality, are left out.
func allowed(t *testing.T, capabilities []string) (calls []uint32) {
	t.Helper()
	known := numbers(t)
	for _, rule := range seccomp.DefaultProfile().Syscalls {
		if rule.Action != "SCMP_ACT_ALLOW" {
			continue
		}
		in, out := rule.Includes, rule.Excludes
		if in != nil && (len(in.Arches) > 0 && !slices.Contains(in.Arches, runtime.GOARCH) || len(in.Caps) > 0 && !slices.ContainsFunc(in.Caps, of(capabilities))) ||
			out != nil && (slices.Contains(out.Arches, runtime.GOARCH) || slices.ContainsFunc(out.Caps, of(capabilities))) {
			continue
		}
		for _, name := range rule.Names {
			if number, ok := known[name]; ok {
				calls = append(calls, number)
			}
		}
	}
	slices.Sort(calls)
	return slices.Compact(calls)
}

func of(list []string) func(string) bool {
	return func(name string) bool { return slices.Contains(list, name) }
}

// numbers reads those of system calls out of the source of golang.org/x/sys/unix.
func numbers(t *testing.T) map[string]uint32 {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	must(t, err)
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "zsysnum_linux_"+runtime.GOARCH+".go"))
	must(t, err)
	found := map[string]uint32{}
	for _, match := range regexp.MustCompile(`SYS_(\w+)\s+= (\d+)`).FindAllStringSubmatch(string(text), -1) {
		number, err := strconv.ParseUint(match[2], 10, 32)
		must(t, err)
		found[strings.ToLower(match[1])] = uint32(number)
	}
	return found
}
