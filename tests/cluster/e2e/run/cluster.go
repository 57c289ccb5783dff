// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/kube"
)

// proxies are who may serve the Services, by name.
var proxies = map[string]func(*cluster, context.Context) error{"kube-proxy": (*cluster).installKubeProxy, "nearlb": (*cluster).installNearlb}

// threeZones: some tests want as many.
var threeZones = []lab.NodeOptions{{Name: "n1", Zone: "a"}, {Name: "n2", Zone: "b"}, {Name: "n3", Zone: "c"}}

// cluster is one with a DNS and a proxy.
type cluster struct {
	*kube.Cluster
	root string // of the repository
	dir  string // for files
	log  io.Writer
}

// start makes a cluster with these images, its DNS, and a proxy.
func start(ctx context.Context, root, dir, proxy string, tarballs []string, log io.Writer) (*cluster, error) {
	made, err := kube.Start(ctx, kube.Options{Nodes: threeZones, Log: log})
	if err != nil {
		return nil, err
	}
	c := &cluster{made, root, dir, log}
	fmt.Fprintf(log, "importing images, and installing CoreDNS and %s\n", proxy)
	err = c.Import(ctx, tarballs...)
	if err == nil {
		err = proxies[proxy](c, ctx)
	}
	if err == nil {
		err = c.installDNS(ctx)
	}
	if err != nil {
		state, _ := c.Kubectl(ctx, "get", "pods,events", "-A", "-o", "wide")
		fmt.Fprintln(log, state)
		c.ShowLogs()
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// kubectl runs commands one after the other until one fails.
func (c *cluster) kubectl(ctx context.Context, commands ...[]string) error {
	for _, command := range commands {
		if _, err := c.Kubectl(ctx, command...); err != nil {
			return err
		}
	}
	return nil
}

// rollout is the command that waits until all pods of a set are ready.
func rollout(set string) []string {
	return []string{"-n", "kube-system", "rollout", "status", set, "--timeout=10m"}
}

func (c *cluster) installDNS(ctx context.Context) error {
	return c.kubectl(ctx, []string{"apply", "-f", c.manifest("coredns.yaml")}, rollout("deployment/coredns"))
}

func (c *cluster) manifest(name string) string {
	return filepath.Join(c.root, "tests/cluster/e2e/manifests", name)
}

func (c *cluster) installKubeProxy(ctx context.Context) error {
	if err := c.InstallKubeProxy(ctx); err != nil {
		return err
	}
	return c.kubectl(ctx, rollout("daemonset/kube-proxy"))
}

// installNearlb is README's, in kube-proxy's place.
func (c *cluster) installNearlb(ctx context.Context) error {
	return c.kubectl(ctx,
		[]string{"-n", "kube-system", "create", "configmap", "nearlb-config", "--from-literal=api-server=" + c.Plane.URL()},
		[]string{"apply", "-k", filepath.Join(c.root, "manifests/overlays/replace-kube-proxy")},
		rollout("daemonset/nearlb"))
}

// keepLogs copies what the parts of the cluster said, the proxies' pods included.
func (c *cluster) keepLogs(ctx context.Context) {
	for _, label := range []string{"app.kubernetes.io/name=nearlb", "k8s-app=kube-proxy", "k8s-app=kube-dns"} {
		out, err := c.Kubectl(ctx, "-n", "kube-system", "logs", "--prefix", "--tail=-1", "-l", label)
		if err == nil && out != "" {
			_ = os.WriteFile(filepath.Join(c.dir, strings.NewReplacer("/", "_", "=", "_").Replace(label)+".log"), []byte(out), 0o600)
		}
	}
	files, _ := filepath.Glob(filepath.Join(c.Lab.Dir, "log", "*"))
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil {
			_ = os.WriteFile(filepath.Join(c.dir, filepath.Base(file)), text, 0o600)
		}
	}
}
