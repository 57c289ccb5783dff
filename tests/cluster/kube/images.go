// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"path/filepath"

	"github.com/nearlb/nearlb/tests/cluster/control"
	"github.com/nearlb/nearlb/tests/cluster/image"
)

// Workload is the image of the pods of tests: see the command workload of this module.
const Workload = "workload:latest"

// workloadImages makes the images of the command workload: that of tests' pods, and the one in whose process the runtime keeps a pod's
// namespaces.
func (c *Cluster) workloadImages() ([]string, error) {
	program, err := control.Build("workload")
	if err != nil {
		return nil, err
	}
	const path = "/workload"
	var files []string
	for _, i := range []image.Image{
		{Name: "pause:latest", Entrypoint: []string{path, "pause"}},
		{Name: Workload, Entrypoint: []string{path}, Command: []string{"serve", "8080"}},
	} {
		i.Program, i.Path = program, path
		file := filepath.Join(c.Lab.Dir, i.Name[:len(i.Name)-len(":latest")]+".tar")
		if err := i.Write(file); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}
