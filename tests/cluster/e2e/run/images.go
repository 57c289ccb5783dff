// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nearlb/nearlb/tests/cluster/control"
	"github.com/nearlb/nearlb/tests/cluster/image"
	"github.com/nearlb/nearlb/tests/daemonset"
	imageutils "k8s.io/kubernetes/test/utils/image"
)

// images writes the tarballs of what the tests' pods, the cluster's DNS and the proxies run: Kubernetes' images made from their sources,
// around the programs of this machine's distribution that they have beside.
func images(root, dir string) ([]string, error) {
	shell, err := busybox()
	if err != nil {
		return nil, err
	}
	all := []func() (image.Image, error){
		func() (image.Image, error) { return agnhost(shell, imageutils.Agnhost, "pause") },
		// What tests have nginx for is a pod with a server that nobody asks.
		func() (image.Image, error) { return agnhost(shell, imageutils.Nginx, "test-webserver") },
		// A distribution's way to look up names beside agnhost's, which is Alpine's in the original: here both are this machine's.
		func() (image.Image, error) { return agnhost(shell, imageutils.GlibcDnsTesting, "pause") },
		func() (image.Image, error) {
			i := shell
			i.Name, i.Command = imageutils.GetE2EImage(imageutils.BusyBox), []string{"sh"}
			return i, nil
		},
		// The programs of netfilter, for a look at connection tracking.
		func() (image.Image, error) { return agnhost(shell, imageutils.DistrolessIptables, "pause") },
		func() (image.Image, error) {
			return single("regression-issue-74839", imageutils.GetE2EImage(imageutils.RegressionIssue74839))
		},
		func() (image.Image, error) { return single("coredns", "coredns:latest") },
		pause,
		func() (image.Image, error) { return nearlb(root) },
	}
	var files []string
	for _, assemble := range all {
		i, err := assemble()
		if err != nil {
			return nil, err
		}
		file := filepath.Join(dir, strings.NewReplacer("/", "_", ":", "_").Replace(i.Name)+".tar")
		if err := i.Write(file); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// busybox is a shell and its programs. Some are others: busybox's own shell prefers its own nc, which knows other flags, and a static
// busybox cannot look up names.
func busybox() (i image.Image, err error) {
	if i.Files, err = image.Programs("busybox", "dash", "bash", "curl", "wget", "nc", "dig", "getent", "ip", "ss", "conntrack"); err != nil {
		return i, err
	}
	i.Program, i.Path, i.Links = i.Files["/usr/bin/busybox"], "/bin/busybox", map[string]string{"/bin/sh": "/usr/bin/dash", "/bin/bash": "/usr/bin/bash"}
	names, err := exec.Command(i.Program, "--list").Output()
	for _, name := range strings.Fields(string(names)) {
		if i.Files["/usr/bin/"+name] == "" && i.Links["/bin/"+name] == "" {
			i.Links["/bin/"+name] = "busybox"
		}
	}
	i.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return i, err
}

// agnhost is the tests' own program beside those that they call in its image.
func agnhost(shell image.Image, id imageutils.ImageID, command string) (image.Image, error) {
	i := shell
	program, err := build("agnhost")
	if err != nil {
		return i, err
	}
	names, err := build("coredns") // a test of resolv.conf has a name server of its own
	if err != nil {
		return i, err
	}
	sources, err := directory("agnhost")
	if err != nil {
		return i, err
	}
	i.Files = maps.Clone(shell.Files)
	i.Files["/bin/busybox"], i.Files["/agnhost"], i.Files["/coredns"] = shell.Program, program, names
	for _, name := range []string{"localhost.crt", "localhost.key"} { // of its server over TLS
		i.Files["/"+name] = filepath.Join(sources, "porter", name)
	}
	i.Name, i.Program, i.Path = imageutils.GetE2EImage(id), program, "/agnhost-2"
	i.Entrypoint, i.Command = []string{"/agnhost"}, []string{command}
	return i, nil
}

// single is the image of one program and nothing else.
func single(name, as string) (image.Image, error) {
	program, err := build(name)
	return image.Image{Name: as, Program: program, Path: "/" + name, Entrypoint: []string{"/" + name}}, err
}

func pause() (image.Image, error) {
	program, err := control.Build("workload")
	return image.Image{Name: imageutils.GetPauseImageName(), Program: program, Path: "/workload", Entrypoint: []string{"/workload", "pause"}}, err
}

// nearlb is the product's.
func nearlb(root string) (image.Image, error) {
	program, err := daemonset.Program()
	if err != nil {
		return image.Image{}, err
	}
	return image.FromDockerfile(filepath.Join(root, "manifests/Dockerfile"), "nearlb:latest", program, "test")
}
