// SPDX-License-Identifier: Apache-2.0

package structure

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// linked lists the import paths of all packages that the program is made of.
func linked(t *testing.T, tags string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-tags", tags, "./cmd/nearlb")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list what the program links: %v", err)
	}
	return strings.Fields(string(out))
}

// The demo's cluster and the measurements are for developers: on a node they would be code that nobody runs beside code that is root.
func TestTheImageLinksNeitherDemoNorMeasurementsNorTests(t *testing.T) {
	extra := []string{module + "pkg/demo", module + "pkg/lab", module + "pkg/bench"}
	for _, path := range linked(t, "image") {
		switch {
		case slices.Contains(extra, path), strings.HasPrefix(path, module+"tests/"),
			strings.HasPrefix(path, "github.com/gopacket/"), path == "testing", path == "net/http/httptest":
			t.Errorf("the image's program links %s", path)
		}
	}
	all := linked(t, "")
	for _, path := range extra {
		if !slices.Contains(all, path) {
			t.Errorf("what make build builds does not link %s", path)
		}
	}
}

// Both ways to make the image build the program with the tag that the test above lists by.
func TestEveryImageIsBuiltWithTheTagForImages(t *testing.T) {
	for file, command := range map[string]string{"manifests/Dockerfile": "make build TAGS=image ", "Makefile": "build BIN=bin/image/nearlb TAGS=image\n"} {
		text, err := os.ReadFile(filepath.Join(root(t), file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), command) {
			t.Errorf("%s has no %q", file, command)
		}
	}
}
