// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/nearlb/nearlb/tests/repository"
	"golang.org/x/sys/unix"
)

// Program is the file of Kubernetes' programs, whose first argument says which one: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, kubelet, kube-proxy or kubectl. The first build takes minutes.
func Program() (string, error) { return program() }

// Version is that of Kubernetes' module. Its programs say what they are told when they are linked, and clients look at it: Helm installs
// no chart on a cluster that is older than the chart wants.
const Version = "v1.36.3"

var program = sync.OnceValues(func() (string, error) {
	major, minor, _ := strings.Cut(strings.TrimPrefix(Version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	var flags []string
	for name, value := range map[string]string{"gitVersion": Version, "gitMajor": major, "gitMinor": minor} {
		flags = append(flags, "-X=k8s.io/component-base/version."+name+"="+value)
	}
	slices.Sort(flags) // the same each time: else Go links it again
	return buildOf("kubernetes", "tests/cluster", "./kubernetes", flags, nil)
})

// Build gives the file of a program of this module. It is built once and kept in the user's cache directory: Go finds in a second or
// two that nothing changed.
func Build(name string) (string, error) { return BuildOf(name, "tests/cluster", "./"+name) }

// BuildOf is Build of a package that another module of this repository, whose directory is given, has or requires. The environment
// may say how.
func BuildOf(name, module, pkg string, environment ...string) (string, error) {
	return buildOf(name, module, pkg, nil, environment)
}

// buildOf is told more flags of the linker.
func buildOf(name, module, pkg string, flags, environment []string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "nearlb-test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	root, err := repository.Root()
	if err != nil {
		return "", err
	}
	return build(filepath.Join(dir, name), filepath.Join(root, module), pkg, flags, environment)
}

// build replaces the file if it is of another version. Who runs the old one goes on with it.
func build(file, dir, pkg string, flags, environment []string) (string, error) {
	command := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w "+strings.Join(flags, " "), "-o", file, pkg)
	command.Dir, command.Env = dir, append(os.Environ(), environment...)
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", filepath.Base(file), err, out)
	}
	return file, nil
}
