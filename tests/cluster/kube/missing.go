// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Missing names what this machine lacks to be a cluster; nothing: it can.
func Missing() []string { return append(MissingOfKernel(), MissingPrograms()...) }

// MissingOfKernel names what no package adds.
func MissingOfKernel() (lacks []string) {
	if os.Geteuid() != 0 {
		return []string{"root"}
	}
	text, _ := os.ReadFile("/proc/filesystems")
	if !slices.ContainsFunc(bytes.Split(text, []byte("\n")), func(line []byte) bool { return bytes.HasSuffix(line, []byte("\toverlay")) }) {
		lacks = append(lacks, "overlayfs in the kernel (modprobe overlay)")
	}
	return append(lacks, missingCgroups()...)
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

func missingCgroups() (lacks []string) {
	all, err := hierarchies()
	if err != nil {
		return []string{err.Error()}
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
	if err != nil {
		lacks = append(lacks, err.Error())
	}
	for _, h := range all {
		kind, _ := os.ReadFile(filepath.Join(h.Mount, cgroupParent, name, "cgroup.type"))
		if strings.TrimSpace(string(kind)) == "domain invalid" {
			lacks = append(lacks, "processes in cgroups below "+h.Mount+", whose root is threaded")
		}
	}
	if err := removeCgroups(all, name); err != nil {
		lacks = append(lacks, err.Error())
	}
	return lacks
}
