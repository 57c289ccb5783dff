// SPDX-License-Identifier: Apache-2.0

// Package structure holds the tests of the tree itself: who imports whom, and what every file must carry.
package structure

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/nearlb/nearlb/"

// allowed says which packages of this module a package may import (DESIGN.md, Layout). A package that is not named here
// may import any, and nobody named here may import it.
var allowed = map[string][]string{
	"pkg/lb":              {},
	"pkg/decide":          {"pkg/lb"},
	"pkg/precedence":      {"pkg/lb"},
	"pkg/watch":           {"pkg/lb", "pkg/watch/kube"},
	"pkg/watch/kube":      {},
	"pkg/watch/clientset": {"pkg/watch/kube"},
	"pkg/bpf":             {"pkg/capability"},
	"pkg/maps":            {"pkg/lb", "pkg/bpf", "pkg/decide", "pkg/precedence"},
	"pkg/attach":          {"pkg/bpf", "pkg/cgroup"},
	"pkg/health":          {"pkg/lb"},
	"pkg/metrics":         {"pkg/lb", "pkg/bpf", "pkg/maps"},
	"pkg/trace":           {"pkg/lb", "pkg/bpf", "pkg/maps", "pkg/decide", "pkg/watch"},
	"pkg/bench":           {"pkg/lb", "pkg/bpf", "pkg/maps", "pkg/decide"},
	"pkg/agent":           {"pkg/lb", "pkg/decide", "pkg/watch", "pkg/bpf", "pkg/maps", "pkg/attach", "pkg/metrics", "pkg/sockdiag", "pkg/health", "pkg/capability", "pkg/kubeproxy", "pkg/dns", "pkg/journal", "pkg/bypass", "pkg/ui", "pkg/watch/clientset"},
	"pkg/lab":             {"pkg/cgroup"},
	"pkg/cgroup":          {},
	"pkg/capability":      {},
	"pkg/kubeproxy":       {},
	"pkg/sockdiag":        {},
	"pkg/bypass":          {},
	"pkg/dns":             {"pkg/lb"},
	"pkg/journal":         {},
	"pkg/explain":         {},
	"pkg/ui":              {},
	"pkg/table":           {},
	"pkg/command":         {"pkg/lb", "pkg/decide", "pkg/watch", "pkg/table"},
	"pkg/plan":            {"pkg/lb", "pkg/decide", "pkg/precedence", "pkg/watch", "pkg/explain", "pkg/table", "pkg/command"},
	"pkg/kubectl":         {"pkg/ui", "pkg/table", "pkg/plan"}, // macOS and Windows have it, too
}

type listed struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list packages: %v", err)
	}
	var all []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("read go list: %v", err)
		}
		all = append(all, p)
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestImportsFollowTheDesignedDirection(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		may, restricted := allowed[name]
		for _, imported := range p.Imports {
			own, ours := strings.CutPrefix(imported, module)
			if restricted && ours && !slices.Contains(may, own) {
				t.Errorf("%s imports %s", name, own)
			}
			if name == "pkg/lb" && strings.Contains(strings.Split(imported, "/")[0], ".") {
				t.Errorf("pkg/lb imports %s: it has the standard library alone", imported)
			}
			if strings.HasPrefix(imported, "k8s.io/") && !mayKnowKubernetes(name, imported) {
				t.Errorf("%s imports %s: pkg/watch alone knows Kubernetes types", name, imported)
			}
		}
	}
}

// The plugin is for every system that kubectl is for: nothing that it imports is of Linux alone. The gate checks its types (tests/types) for two others than Linux.
func TestThePluginIsForEverySystem(t *testing.T) {
	for _, system := range []string{"linux", "darwin", "windows"} {
		for _, arch := range []string{"amd64", "arm64"} {
			cmd := exec.Command("go", "list", "-deps", "./cmd/kubectl-nearlb")
			cmd.Dir = root(t)
			cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s/%s: %v\n%s", system, arch, err, out)
			}
		}
	}
}

// mayKnowKubernetes lets the agent have what is no object type: the client it logs in with and the work queue.
func mayKnowKubernetes(name, imported string) bool {
	if name == "pkg/watch" || strings.HasPrefix(name, "pkg/watch/") || strings.HasPrefix(name, "tests/") {
		return true
	}
	if name == "pkg/kubectl" {
		return !strings.HasPrefix(imported, "k8s.io/api/") // a client, and what of objects it names itself
	}
	if name == "pkg/command" && imported == "k8s.io/client-go/util/jsonpath" {
		return true // templates over any JSON
	}
	if name == "pkg/agent" {
		return !strings.HasPrefix(imported, "k8s.io/api/")
	}
	return false
}

func TestEveryFileSaysItsLicence(t *testing.T) {
	want := map[string]string{".go": "Apache-2.0", ".sh": "Apache-2.0", ".c": "(GPL-2.0-only OR BSD-2-Clause)", ".h": "(GPL-2.0-only OR BSD-2-Clause)"}
	files := filesOf(t, ".", func(path string) bool { return want[filepath.Ext(path)] != "" && !strings.HasSuffix(path, "_bpfel.go") })
	for path, text := range files {
		licence := want[filepath.Ext(path)]
		if head := string(text[:min(len(text), 200)]); !strings.Contains(head, "SPDX-License-Identifier: "+licence) {
			t.Errorf("%s: no line SPDX-License-Identifier: %s at its head", path, licence)
		}
	}
	if len(files) == 0 {
		t.Error("no file found")
	}
}

// filesOf reads the chosen files below a directory of the tree, but for what git and make keep there. Other tests run beside this
// one: what goes while it looks is none of the tree.
func filesOf(t *testing.T, dir string, chosen func(path string) bool) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	err := filepath.WalkDir(filepath.Join(root(t), dir), func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin"):
			return filepath.SkipDir
		case d.IsDir() || !chosen(path):
			return nil
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		found[path] = text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
