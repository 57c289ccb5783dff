// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// There is no engine here to build the image with: its one command runs on what .dockerignore lets through, for both
// architectures.
func TestTheImagesCommandBuildsAStaticProgramForEveryArchitecture(t *testing.T) {
	root := filepath.Dir(Directory())
	dockerfile, err := os.ReadFile(filepath.Join(root, "manifests", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`(?m)^RUN (.*make build.*)$`).FindSubmatch(dockerfile)
	copied := regexp.MustCompile(`(?m)^COPY --from=build /src/(\S+) (\S+)$`).FindSubmatch(dockerfile)
	if command == nil || copied == nil || !strings.Contains(string(dockerfile), `ENTRYPOINT ["`+string(copied[2])+`"]`) {
		t.Fatalf("the Dockerfile builds, copies and runs nothing that this test knows:\n%s", dockerfile)
	}
	source := t.TempDir()
	for _, name := range sources(t, root) {
		if out, err := exec.Command("cp", "-a", filepath.Join(root, name), source).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		cmd := exec.Command("sh", "-ec", string(command[1]))
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "TARGETOS=linux", "TARGETARCH="+arch, "VERSION=v9.9.9-"+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", arch, err, out)
		}
		checkProgram(t, filepath.Join(source, string(copied[1])), machine, "v9.9.9-"+arch)
	}
}

// sources are the names that .dockerignore takes out of what it leaves out.
func sources(t *testing.T, root string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		name, kept := strings.CutPrefix(line, "!")
		if kept {
			names = append(names, name)
		} else if line != "*" && !strings.HasPrefix(line, "#") && line != "" {
			t.Fatalf(".dockerignore: %q is more than this test knows", line)
		}
	}
	return names
}

func checkProgram(t *testing.T, path string, machine elf.Machine, version string) {
	t.Helper()
	program, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if program.Machine != machine {
		t.Errorf("built for %v, want %v", program.Machine, machine)
	}
	libraries, err := program.ImportedLibraries()
	if err != nil || len(libraries) > 0 {
		t.Errorf("it wants the libraries %v, %v", libraries, err)
	}
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("it wants a dynamic loader")
		}
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), version) {
		t.Errorf("version %s is not in it, %v", version, err)
	}
}
