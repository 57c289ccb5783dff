// SPDX-License-Identifier: Apache-2.0

package rig

import "github.com/nearlb/nearlb/pkg/lab"

// StartKubeProxy runs kube-proxy on a node, in mode nftables, as a cluster has it. The program is that of tests/cluster, which has it by name.
func StartKubeProxy(n *lab.Node, program, kubeconfig string) (*lab.Process, error) {
	return n.Start("kube-proxy", []string{program, "kube-proxy", "--kubeconfig=" + kubeconfig, "--proxy-mode=nftables", "--hostname-override=" + n.Name,
		"--cluster-cidr=10.244.0.0/16,fd24::/16", "--detect-local-mode=ClusterCIDR", "--conntrack-max-per-core=0", "--conntrack-min=0",
		"--healthz-bind-address=127.0.0.1:20256", "--metrics-bind-address=127.0.0.1:20249"})
}
