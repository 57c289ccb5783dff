// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	_ "embed"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearlb/nearlb/tests/cluster/control"
	"github.com/nearlb/nearlb/tests/cluster/image"
)

//go:embed kube-proxy.yaml
var kubeProxyManifest string

// KubeProxy is the image of Kubernetes' own proxy, which it runs as "/kubernetes kube-proxy".
const KubeProxy = "kube-proxy:latest"

// InstallKubeProxy gives the nodes Kubernetes' own proxy, as a DaemonSet that may not have pods yet. It names the API server's own address:
// nobody serves its ClusterIP yet.
func (c *Cluster) InstallKubeProxy(ctx context.Context) error {
	program, err := control.Program()
	if err != nil {
		return err
	}
	i := image.Image{Name: KubeProxy, Program: program, Path: "/kubernetes", Entrypoint: []string{"/kubernetes", "kube-proxy"}, Env: []string{"PATH=/usr/bin"}}
	if i.Files, err = image.Programs("nft", "conntrack"); err != nil { // by which it writes its rules
		return err
	}
	file := filepath.Join(c.Lab.Dir, "kube-proxy.tar")
	if err := i.Write(file); err != nil {
		return err
	}
	if err := c.Import(ctx, file); err != nil {
		return err
	}
	return c.Plane.ApplyText(ctx, []byte(strings.ReplaceAll(kubeProxyManifest, "SERVER", c.Plane.URL())), metav1.ApplyOptions{})
}
