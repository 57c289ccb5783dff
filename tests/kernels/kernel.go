// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// kernels are the Debian packages whose newest version is booted.
var kernels = map[string]*regexp.Regexp{
	"6.1":  regexp.MustCompile(`^linux-image-6\.1\.0-\d+-amd64$`),
	"6.12": regexp.MustCompile(`^linux-image-6\.12\.\d+\+deb\d+-amd64$`),
}

// kept are the parts of a kernel package that a guest may need.
var kept = regexp.MustCompile(`^\./(boot/vmlinuz-|lib/modules/[^/]+/(modules\.builtin$|kernel/(arch|crypto|lib|mm|net|drivers/net|drivers/virtio)/))`)

// kernel is one kernel with its modules, below dir as its package has them.
type kernel struct {
	name    string // a key of kernels
	version string // of its package
	dir     string
}

// fetch gives the kernel from the cache, where one is that the pattern fits, else from the newest package that apt knows.
// apt checks the package by its signed lists; nothing is installed.
func fetch(name, cache string) (*kernel, error) {
	if found, err := cached(name, cache); found != nil || err != nil {
		return found, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(cache, "download-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	pkg, err := ask(name, dir)
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(files) != 1 {
		return nil, errors.Join(fmt.Errorf("download %s: it gave %d files", pkg, len(files)), err)
	}
	if err := unpack(files[0], filepath.Join(dir, "kernel")); err != nil {
		return nil, fmt.Errorf("unpack %s: %w", files[0], err)
	}
	if err := os.Rename(filepath.Join(dir, "kernel"), filepath.Join(cache, pkg)); err != nil {
		return nil, err
	}
	return cached(name, cache)
}

// apt is asked for one kernel at a time: its lists change under nobody who reads them.
var apt sync.Mutex

// ask downloads a kernel's package.
func ask(name, dir string) (pkg string, err error) {
	apt.Lock()
	defer apt.Unlock()
	if pkg, err = download(name, dir); err == nil {
		return pkg, nil
	}
	if err := aptUpdate(); err != nil { // no lists, or older ones than the mirror
		return "", err
	}
	return download(name, dir)
}

// retries has apt go on after errors of the network.
const retries = "-oAcquire::Retries=5"

func download(name, dir string) (pkg string, err error) {
	if pkg, err = newest(kernels[name]); err != nil {
		return "", fmt.Errorf("find package of Linux %s: %w", name, err)
	}
	command := exec.Command("apt-get", "download", retries, "-qq", "-o", "APT::Sandbox::User=root", pkg)
	command.Dir = dir
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("download %s: %w: %s", pkg, err, out)
	}
	return pkg, nil
}

func aptUpdate() error {
	if out, err := exec.Command("apt-get", "update", retries, "-qq").CombinedOutput(); err != nil {
		return fmt.Errorf("update apt's lists: %w: %s", err, out)
	}
	return nil
}

func cached(name, cache string) (*kernel, error) {
	entries, err := os.ReadDir(cache)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var fit []string
	for _, e := range entries {
		if kernels[name].MatchString(e.Name()) {
			fit = append(fit, e.Name())
		}
	}
	if len(fit) == 0 {
		return nil, nil
	}
	k := &kernel{name: name, dir: filepath.Join(cache, slices.MaxFunc(fit, compareVersions))}
	k.version = strings.TrimPrefix(filepath.Base(k.dir), "linux-image-")
	return k, nil
}

func newest(pattern *regexp.Regexp) (string, error) {
	out, err := exec.Command("apt-cache", "pkgnames", "linux-image-").Output()
	if err != nil {
		return "", err
	}
	fit := slices.DeleteFunc(strings.Fields(string(out)), func(pkg string) bool { return !pattern.MatchString(pkg) })
	if len(fit) == 0 {
		return "", fmt.Errorf("apt knows none that fits %s: are its lists those of Debian 12, and fresh (apt-get update)?", pattern)
	}
	return slices.MaxFunc(fit, compareVersions), nil
}

var number = regexp.MustCompile(`\d+`)

// compareVersions compares names of packages by the numbers in them.
func compareVersions(a, b string) int {
	return slices.CompareFunc(number.FindAllString(a, -1), number.FindAllString(b, -1), func(m, n string) int {
		if len(m) != len(n) {
			return len(m) - len(n)
		}
		return strings.Compare(m, n)
	})
}

// unpack writes the files that a guest may need below dir.
func unpack(deb, dir string) error {
	command := exec.Command("dpkg-deb", "--fsys-tarfile", deb)
	var complaint bytes.Buffer
	command.Stderr = &complaint
	out, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	unpacked := untar(out, dir)
	if unpacked != nil {
		_ = command.Process.Kill()
	}
	if err := errors.Join(unpacked, command.Wait()); err != nil {
		return fmt.Errorf("%w: %s", err, complaint.String())
	}
	return nil
}

func untar(from io.Reader, dir string) error {
	for files := tar.NewReader(from); ; {
		header, err := files.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg || !kept.MatchString(header.Name) {
			continue
		}
		if !filepath.IsLocal(header.Name) {
			return fmt.Errorf("the package has file %s", header.Name)
		}
		text, err := io.ReadAll(files)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, header.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
}

// image is the kernel's boot image.
func (k *kernel) image() (string, error) {
	found, err := filepath.Glob(filepath.Join(k.dir, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return "", errors.Join(fmt.Errorf("%s has %d boot images", k.dir, len(found)), err)
	}
	return found[0], nil
}
