// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func bundleOf(t *testing.T, file string) map[string]string {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if info, err := in.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: want it for its owner alone", info.Mode(), err)
	}
	zipped, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for reader := tar.NewReader(zipped); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(text)
	}
}

func TestABundleHasWhatEveryNodeSaysAndWhatCouldNotBeHad(t *testing.T) {
	s := newStandIn(t, "n1", "n2")
	s.nodes = append(s.nodes, "n3")
	s.program = func(node string, command []string, out, errs io.Writer) int {
		fmt.Fprintf(out, `{"said":"%s by %s","backend":"10.244.1.7:8080","client":"fd00::7"}`+"\n", command[0], node)
		if command[0] == "check" {
			fmt.Fprintln(errs, "something is missing")
			return 1
		}
		return 0
	}
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	got := plugin(t, s, "collect", "--file", file)
	files := bundleOf(t, file)
	if got.status != 1 || got.errs != "n3: no pod of nearlb is there\n" || got.out != fmt.Sprintf("%s: 3 nodes, %d files\n", file, len(files)) {
		t.Errorf("%+v", got)
	}
	for name := range collected {
		for _, node := range []string{"n1", "n2"} {
			if text := files["nearlb/nodes/"+node+"/"+name]; !strings.Contains(text, collected[name][0]+" by "+node) || !strings.Contains(text, "10.244.1.7:8080") {
				t.Errorf("%s of %s: %q", name, node, text)
			}
		}
	}
	for name, want := range map[string]string{"nodes/n1/agent.log": "log of nearlb-n1", "nodes/n1/errors.txt": "check.json: exit status 1: something is missing", "nodes/n3/errors.txt": "no pod of nearlb is there",
		"pods.json": "nearlb-n2", "errors.txt": "configmap.json: "} {
		if !strings.Contains(files["nearlb/"+name], want) {
			t.Errorf("%s: %q", name, files["nearlb/"+name])
		}
	}
	if again := plugin(t, s, "collect", "--file", file); again.status != 1 || !strings.Contains(again.errs, "exists") {
		t.Errorf("a file is written over: %+v", again)
	}
	masked := filepath.Join(t.TempDir(), "masked.tar.gz")
	plugin(t, s, "collect", "--mask", "--file", masked)
	for name, text := range bundleOf(t, masked) {
		if strings.Contains(text, "10.244.1.7") || strings.Contains(text, "fd00::7") {
			t.Errorf("%s has an address: %q", name, text)
		}
	}
}

// A kubelet that hangs is asked once, and its log: each question takes as long as one may.
func TestANodeThatDoesNotAnswerIsAskedOnceForABundle(t *testing.T) {
	s := newStandIn(t, "n1", "n2")
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	s.program = func(node string, command []string, out, errs io.Writer) int {
		if node == "n2" {
			<-over
		}
		fmt.Fprintln(out, "{}")
		return 0
	}
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	got := plugin(t, s, "collect", "--file", file, "--timeout", "5s")
	files := bundleOf(t, file)
	if got.status != 1 || got.errs != "n2: no answer within 5s (--timeout)\n" || files["nearlb/nodes/n2/errors.txt"] != "version.json: no answer within 5s (--timeout)\n" {
		t.Errorf("%+v, %q", got, files["nearlb/nodes/n2/errors.txt"])
	}
	if asked := slices.DeleteFunc(s.asked, func(of string) bool { return strings.HasPrefix(of, "n1") }); len(asked) != 1 {
		t.Errorf("n2 was asked %q", asked)
	}
	for name := range collected {
		if files["nearlb/nodes/n1/"+name] == "" {
			t.Errorf("%s of n1 is missing", name)
		}
	}
}

func TestAMaskedAddressIsTheSameOneEverywhere(t *testing.T) {
	m := newMask()
	for text, want := range map[string]string{
		"10.0.0.1":                            "240.0.0.1",
		"to 10.0.0.1:80, [fd00::1]:80 (ok).":  "to 240.0.0.1:80, [100::1]:80 (ok).",
		"10.0.0.1/24 fd00::1/64":              "240.0.0.1/24 100::1/64",
		"ip-10-0-0-1.ec2 and ::ffff:10.0.0.1": "ip-240-0-0-1.ec2 and ::ffff:240.0.0.1",
		"refused by fd00::1: 10.0.0.1.":       "refused by 100::1: 240.0.0.1.",
		"127.0.0.1:10249 [::1]:53 0.0.0.0 ::": "127.0.0.1:10249 [::1]:53 0.0.0.0 ::",
		"addr=10.0.0.1":                       "addr=240.0.0.1",
		`10.0.0.1:443-\u003e10.0.0.1:80`:      "240.0.0.1:443->240.0.0.1:80",
		`a\u003efd00::1`:                      "a>100::1",
		"10.0.0.1.ec2.internal node10.0.0.1":  "240.0.0.1.ec2.internal node240.0.0.1",
		"10.0.0.1.default..10.0.0.1":          "240.0.0.1.default..240.0.0.1",
		"1.2.3.4.5 300.0.0.1":                 "1.2.3.4.5 300.0.0.1",
	} {
		m = newMask()
		m.text("10.0.0.1 fd00::1")
		if got := m.text(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := m.text("2026-11-23T10:15:30.5Z v1.36.3"); got != "2026-11-23T10:15:30.5Z v1.36.3" {
		t.Errorf("got %q", got)
	}
	seen := map[string]bool{}
	for i := range 600 {
		seen[m.text(fmt.Sprintf("10.1.%d.%d", i/256, i%256))] = true
	}
	if len(seen) != 600 || seen["10.1.0.0"] {
		t.Errorf("600 addresses became %d", len(seen))
	}
}
