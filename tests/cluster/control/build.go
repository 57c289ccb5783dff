// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/nearlb/nearlb/tests/repository"
	"golang.org/x/sys/unix"
)

// Program is the file of Kubernetes' programs, whose first argument says which one: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, kubelet, kube-proxy or kubectl. The first build takes minutes.
func Program() (string, error) { return program() }

var program = sync.OnceValues(func() (string, error) { return Build("kubernetes") })

// Build gives the file of a program of this module. It is built once and kept in the user's cache directory: Go finds in a second or
// two that nothing changed.
func Build(name string) (string, error) { return BuildOf(name, "tests/cluster", "./"+name) }

// BuildOf is Build of a package that another module of this repository, whose directory is given, has or requires. The environment
// may say how.
func BuildOf(name, module, pkg string, environment ...string) (string, error) {
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
	return build(filepath.Join(dir, name), filepath.Join(root, module), pkg, environment)
}

// build replaces the file if it is of another version. Who runs the old one goes on with it.
func build(file, dir, pkg string, environment []string) (string, error) {
	command := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", file, pkg)
	command.Dir, command.Env = dir, append(os.Environ(), environment...)
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", filepath.Base(file), err, out)
	}
	return file, nil
}
