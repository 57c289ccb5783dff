// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/nearlb/nearlb/tests/repository"
)

// What the Dockerfile says by its own words is here once more, so that the two are read apart.
func TestTheTarballHasTheFilesAndTheConfigurationOfTheDockerfile(t *testing.T) {
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	program, file := filepath.Join(t.TempDir(), "nearlb"), filepath.Join(t.TempDir(), "nearlb.tar")
	if err := os.WriteFile(program, []byte("the program"), 0o755); err != nil {
		t.Fatal(err)
	}
	i, err := FromDockerfile(filepath.Join(root, "manifests", "Dockerfile"), "nearlb:latest", program, "v9.9.9")
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Write(file); err != nil {
		t.Fatal(err)
	}
	made, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := made.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	dockerfile, err := os.ReadFile(filepath.Join(root, "manifests", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(config.Config.Entrypoint, []string{"/usr/local/bin/nearlb"}) || !strings.Contains(string(dockerfile), `ENTRYPOINT ["/usr/local/bin/nearlb"]`) {
		t.Errorf("the image starts %v", config.Config.Entrypoint)
	}
	if config.Config.User != "" || strings.Contains(string(dockerfile), "\nUSER") {
		t.Errorf("its user is %q", config.Config.User)
	}
	if got := config.Config.Labels["org.opencontainers.image.version"]; got != "v9.9.9" {
		t.Errorf("its version is %q", got)
	}
	if want := strings.Count(string(dockerfile), "org.opencontainers.image."); len(config.Config.Labels) != want {
		t.Errorf("%d labels, want %d: %v", len(config.Config.Labels), want, config.Config.Labels)
	}
	layers, err := made.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	text, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	var names []string
	for in := tar.NewReader(text); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
		if header.Mode != 0o755 || header.Uid != 0 || header.Gid != 0 {
			t.Errorf("%s has mode %o and is of %d:%d", header.Name, header.Mode, header.Uid, header.Gid)
		}
		if content, _ := io.ReadAll(in); header.Typeflag == tar.TypeReg && string(content) != "the program" {
			t.Errorf("%s has %q", header.Name, content)
		}
	}
	if want := []string{"usr/", "usr/local/", "usr/local/bin/", "usr/local/bin/nearlb"}; !slices.Equal(names, want) {
		t.Errorf("its files are %v, want %v", names, want)
	}
}

func TestADockerfileThatMakesAnotherImageIsRefused(t *testing.T) {
	const good = "FROM golang AS build\nRUN make\nFROM scratch\nCOPY --from=build /src/bin/nearlb /nearlb\nENTRYPOINT [\"/nearlb\"]\n"
	for text, ok := range map[string]bool{
		good:                true,
		good + "USER 65534": false,
		good + "COPY --from=build /src/bin/other /other": false,
		"FROM scratch\nENTRYPOINT [\"/nearlb\"]\n":       false,
		"FROM alpine\n": false,
	} {
		file := filepath.Join(t.TempDir(), "Dockerfile")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := FromDockerfile(file, "nearlb:latest", "nearlb", "v1"); (err == nil) != ok {
			t.Errorf("%v of\n%s", err, text)
		}
	}
}
