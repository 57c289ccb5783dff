// SPDX-License-Identifier: Apache-2.0

// Command make builds the programs for each platform and puts a release into a directory: `make release`, `make plugin`.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nearlb/nearlb/tests/release"
)

type maker struct {
	version, url, image, out string
	pluginOnly               bool
	work                     string            // programs, before they are archived
	sums                     map[string]string // by archive
}

func main() {
	var m maker
	flag.StringVar(&m.version, "version", "", "as v1.2.3")
	flag.StringVar(&m.url, "url", "", "where the archives will be")
	flag.StringVar(&m.image, "image", "nearlb", "name of the image, without its tag")
	flag.StringVar(&m.out, "out", "bin/release", "directory, emptied first")
	flag.BoolVar(&m.pluginOnly, "plugin", false, "kubectl nearlb alone")
	flag.Parse()
	if err := m.make(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func (m *maker) make() (err error) {
	if !m.pluginOnly {
		if err := release.CheckVersion(m.version); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(m.out); err != nil {
		return err
	}
	if err := os.MkdirAll(m.out, 0o755); err != nil {
		return err
	}
	if m.work, err = os.MkdirTemp("", "nearlb-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(m.work)
	m.sums = map[string]string{}
	steps := []func() error{m.plugin, m.krew}
	if !m.pluginOnly {
		steps = append(steps, m.agent, m.images, m.installation)
	}
	for _, step := range append(steps, m.total) {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (m *maker) plugin() error {
	for _, p := range release.PluginPlatforms {
		if err := m.program("kubectl-nearlb", "github.com/nearlb/nearlb/pkg/kubectl.version", p); err != nil {
			return err
		}
	}
	return nil
}

func (m *maker) agent() error {
	for _, p := range release.AgentPlatforms {
		if err := m.program("nearlb", "github.com/nearlb/nearlb/pkg/cli.version", p); err != nil {
			return err
		}
	}
	return nil
}

// program builds one and archives it with the licence; beside it lies what it contains.
func (m *maker) program(name, version string, p release.Platform) error {
	built := filepath.Join(m.work, p.OS+"_"+p.Arch, p.Program(name))
	if err := m.run(".", []string{"GOOS=" + p.OS, "GOARCH=" + p.Arch}, "go", "build", "-ldflags", "-s -w -X "+version+"="+m.version, "-o", built, "./cmd/"+name); err != nil {
		return err
	}
	content, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	licence, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	archive := p.Archive(name, m.version)
	m.sums[archive], err = release.Write(filepath.Join(m.out, archive), map[string]release.File{p.Program(name): {Content: content, Program: true}, "LICENSE": {Content: licence}})
	if err != nil || m.pluginOnly {
		return err
	}
	contents, err := release.Contents(built, m.version)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.out, archive+".cdx.json"), contents, 0o644)
}

func (m *maker) krew() error {
	template, err := os.ReadFile("cmd/kubectl-nearlb/krew.yaml")
	if err != nil {
		return err
	}
	manifest, err := release.Krew(string(template), m.version, m.url, m.sums)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.out, "nearlb.yaml"), []byte(manifest), 0o644)
}

// images are the image that manifests/Dockerfile makes, of each architecture.
func (m *maker) images() error {
	for _, p := range release.AgentPlatforms {
		built := filepath.Join(m.work, "image_"+p.Arch)
		if err := m.run(".", []string{"GOARCH=" + p.Arch}, "make", "-s", "build", "BIN="+built, "TAGS=image", "VERSION="+m.version); err != nil {
			return err
		}
		file, err := filepath.Abs(filepath.Join(m.out, fmt.Sprintf("nearlb-image_%s_%s_%s.tar", m.version, p.OS, p.Arch)))
		if err != nil {
			return err
		}
		if err := m.run("tests/cluster", nil, "go", "run", "./image/nearlb", "-dockerfile", "../../manifests/Dockerfile", "-program", built,
			"-arch", p.Arch, "-version", m.version, "-name", m.image+":"+m.version, "-out", file); err != nil {
			return err
		}
	}
	return nil
}

// installation is the chart and the kustomizations, with the version's image.
func (m *maker) installation() error {
	chart, err := release.Tree("manifests/helm/nearlb", "nearlb")
	if err == nil {
		err = release.Chart(chart, m.version, m.image)
	}
	if err != nil {
		return err
	}
	if _, err = release.Write(filepath.Join(m.out, "nearlb-"+m.version[1:]+".tgz"), chart); err != nil {
		return err
	}
	manifests, err := release.Tree("manifests", "manifests")
	if err == nil {
		err = release.Manifests(manifests, m.version, m.image)
	}
	if err != nil {
		return err
	}
	for name := range manifests { // the chart is a file of its own
		if strings.HasPrefix(name, "manifests/helm/") {
			delete(manifests, name)
		}
	}
	_, err = release.Write(filepath.Join(m.out, "nearlb-manifests_"+m.version+".tar.gz"), manifests)
	return err
}

func (m *maker) total() error {
	sums, err := release.Sums(m.out)
	if err != nil {
		return err
	}
	fmt.Print(sums)
	return os.WriteFile(filepath.Join(m.out, "SHA256SUMS"), []byte(sums), 0o644)
}

func (m *maker) run(dir string, env []string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s %v: %w", name, args, err)
	}
	return nil
}
