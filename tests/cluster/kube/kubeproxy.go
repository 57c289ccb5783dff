// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	_ "embed"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearlb/nearlb/tests/cluster/control"
	"github.com/nearlb/nearlb/tests/cluster/image"
)

//go:embed kube-proxy.yaml
var kubeProxyManifest string

// KubeProxy is the image of Kubernetes' own proxy, by the name that docs/install.md has it by.
const KubeProxy = "registry.k8s.io/kube-proxy:" + control.Version

// InstallKubeProxy gives the nodes Kubernetes' own proxy, as a DaemonSet that may not have pods yet. It names the API server's own address:
// nobody serves its ClusterIP yet.
func (c *Cluster) InstallKubeProxy(ctx context.Context) error {
	file, err := c.kubeProxyImage()
	if err != nil {
		return err
	}
	if err := c.Import(ctx, file); err != nil {
		return err
	}
	return c.Plane.ApplyText(ctx, []byte(strings.ReplaceAll(kubeProxyManifest, "SERVER", c.Plane.URL())), metav1.ApplyOptions{})
}

// kubeProxyImage has the program kube-proxy where the original has it, and those by which it writes its rules.
func (c *Cluster) kubeProxyImage() (string, error) {
	script := filepath.Join(c.Lab.Dir, "kube-proxy")
	if err := os.WriteFile(script, []byte("#!/usr/bin/dash\nexec /kubernetes kube-proxy \"$@\"\n"), 0o755); err != nil {
		return "", err
	}
	i := image.Image{Name: KubeProxy, Program: script, Path: "/usr/local/bin/kube-proxy", Env: []string{"PATH=/usr/local/bin:/usr/bin"}}
	var err error
	if i.Files, err = image.Programs("dash", "nft", "conntrack"); err != nil {
		return "", err
	}
	if i.Files["/kubernetes"], err = control.Program(); err != nil {
		return "", err
	}
	file := script + ".tar"
	return file, i.Write(file)
}
