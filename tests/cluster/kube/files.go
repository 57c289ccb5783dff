// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"os"
	"strings"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Where a node has what it runs.
const (
	kubernetesFile   = "/opt/kubernetes" // the program
	containerdFile   = "/etc/containerd/config.toml"
	containerdSocket = "/run/containerd/containerd.sock"
	pluginDir        = "/usr/lib/cni"
	networkFile      = "/etc/cni/net.d/10-pods.conflist"
)

// containerdConfig: this machine may be one that lets nobody make a process's OOM score less.
const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "` + containerdSocket + `"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/library/pause:latest"
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "` + pluginDir + `"
conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
`

// kubeletConfig: the node's cgroups are below its own, of either version; its disk is memory, and nobody else's. At the address of the
// cluster's DNS is one if somebody installs it.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: /etc/kubernetes/ca.crt}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://` + containerdSocket + `
clusterDomain: cluster.local
clusterDNS: [10.96.0.10]
resolvConf: /etc/resolv.conf
failSwapOn: false
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: true
oomScoreAdj: 0
imageGCHighThresholdPercent: 100
evictionHard: {nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
`

// files are a node's own: who it is, how it logs in, and what its services are told.
func (c *Cluster) files(n *lab.Node) (map[string]string, error) {
	user := "system:node:" + n.Name
	kubeconfig, err := c.Plane.Certify(user, "system:nodes")
	if err != nil {
		return nil, err
	}
	files := map[string]string{
		"/etc/hostname":                n.Name + "\n",
		"/etc/hosts":                   fmt.Sprintf("127.0.0.1 localhost\n::1 localhost\n%s %s\n%s %s\n", n.V4, n.Name, n.V6, n.Name),
		"/etc/resolv.conf":             "",
		"/etc/passwd":                  "root:x:0:0:root:/root:/bin/sh\n",
		"/etc/group":                   "root:x:0:\n",
		"/etc/os-release":              "ID=nearlb\nPRETTY_NAME=\"A node of nearlb's test cluster\"\n",
		"/etc/machine-id":              fmt.Sprintf("%032x\n", n.V4.As4()),
		containerdFile:                 containerdConfig,
		"/etc/kubernetes/kubelet.yaml": kubeletConfig,
	}
	if c.network.Given != nil {
		files[containerdFile] = strings.Replace(containerdConfig, pluginDir, givenPluginDir, 1)
	}
	if c.network.Plugin != nil { // else the network says itself what pods get
		if files[networkFile], err = c.network.config(n.PodSubnets()); err != nil {
			return nil, err
		}
	}
	for path, source := range map[string]string{
		"/etc/kubernetes/ca.crt":             c.Plane.File("ca.crt"),
		"/etc/kubernetes/kubelet.kubeconfig": kubeconfig,
		"/etc/kubernetes/" + user + ".crt":   c.Plane.File(user + ".crt"),
		"/etc/kubernetes/" + user + ".key":   c.Plane.File(user + ".key"),
	} {
		text, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		files[path] = strings.ReplaceAll(string(text), c.Plane.Dir+"/", "/etc/kubernetes/")
	}
	return files, nil
}

// services are a node's, in the order of their start.
func services(n *lab.Node) []service {
	var labels []string
	if n.Options.Zone != "" {
		labels = append(labels, "topology.kubernetes.io/zone="+n.Options.Zone)
	}
	return []service{
		{Name: "containerd", Command: []string{"containerd", "--config=" + containerdFile}, Socket: containerdSocket},
		{Name: "kubelet", Command: []string{
			kubernetesFile, "kubelet", "--config=/etc/kubernetes/kubelet.yaml", "--kubeconfig=/etc/kubernetes/kubelet.kubeconfig",
			"--hostname-override=" + n.Name, "--node-ip=" + n.V4.String() + "," + n.V6.String(), "--node-labels=" + strings.Join(labels, ","),
			"--cert-dir=/var/lib/kubelet/pki",
		}},
	}
}
