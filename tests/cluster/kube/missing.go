// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Missing names what this machine lacks to be a cluster; nothing: it can.
func Missing() []string {
	if os.Geteuid() != 0 {
		return []string{"root"}
	}
	lacks, err := MissingOfKernel()
	if err != nil {
		lacks = append(lacks, err.Error())
	}
	return append(lacks, MissingPrograms()...)
}

// MissingOfKernel names what the kernel does not have, which no package adds. What it has and does not let this process use is an error.
func MissingOfKernel() (lacks []string, err error) {
	if !hasOverlay() {
		_ = exec.Command("modprobe", "overlay").Run()
	}
	if !hasOverlay() {
		lacks = append(lacks, "overlayfs in the kernel")
	}
	cgroups, err := missingCgroups()
	return append(lacks, cgroups...), err
}

func hasOverlay() bool {
	text, _ := os.ReadFile("/proc/filesystems")
	return slices.ContainsFunc(bytes.Split(text, []byte("\n")), func(line []byte) bool { return bytes.HasSuffix(line, []byte("\toverlay")) })
}

// MissingPrograms names what packages have.
func MissingPrograms() (lacks []string) {
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			lacks = append(lacks, "the program "+program+" (Debian: containerd, runc, util-linux)")
		}
	}
	for _, plugin := range []string{"ptp", "host-local", "portmap", "loopback"} {
		if _, err := os.Stat(filepath.Join(pluginDir, plugin)); err != nil {
			lacks = append(lacks, fmt.Sprintf("the CNI plugin %s in %s (Debian: containernetworking-plugins)", plugin, pluginDir))
		}
	}
	return lacks
}

func missingCgroups() (lacks []string, err error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(all, func(h hierarchy) bool { return h.Options == nil }) {
		lacks = append(lacks, "cgroups of version 2 below /sys/fs/cgroup")
	}
	have := controllers(all)
	for _, controller := range []string{"cpu", "cpuset", "memory", "pids"} {
		if !slices.Contains(have, controller) {
			lacks = append(lacks, "the cgroup controller "+controller+" below /sys/fs/cgroup")
		}
	}
	name := fmt.Sprintf("check.%d", os.Getpid())
	loans, err := makeCgroups(all, name)
	defer func() { giveBack(loans) }()
	for _, h := range all {
		kind, _ := os.ReadFile(filepath.Join(h.Mount, cgroupParent, name, "cgroup.type"))
		if strings.TrimSpace(string(kind)) == "domain invalid" {
			lacks = append(lacks, "processes in cgroups below "+h.Mount+", whose root is threaded")
		}
	}
	return lacks, errors.Join(err, removeCgroups(all, name))
}
