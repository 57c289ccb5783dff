// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/control"
	"github.com/nearlb/nearlb/tests/cluster/image"
)

// Flannel is a network that flannel's daemon makes: routes or tunnels from node to node, and rules that masquerade what leaves the pods'
// network.
type Flannel struct {
	Backend  string // host-gw, vxlan
	NFTables bool   // its rules are nftables' own, not iptables'
}

// options: host-gw wants nodes that are neighbours.
func (f Flannel) options() lab.Options {
	o := lab.Options{Unrouted: true}
	if f.Backend == "host-gw" {
		o.Network = lab.Shared
	}
	return o
}

//go:embed flannel.yaml
var flannelManifest string

// installFlannel gives each node its pods' addresses, as a controller manager with --allocate-node-cidrs does, starts flannel, and waits
// until it has said what pods get.
func (c *Cluster) installFlannel(ctx context.Context) error {
	c.say("starting flannel, %s (minutes the first time)", c.network.Flannel.Backend)
	file, err := c.flannelImage()
	if err != nil {
		return err
	}
	if err := c.Import(ctx, file); err != nil {
		return err
	}
	if err := c.assignPods(ctx); err != nil {
		return err
	}
	conf, err := marshal(map[string]any{
		"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd24::/16", "EnableNFTables": c.network.Flannel.NFTables,
		"Backend": map[string]any{"Type": c.network.Flannel.Backend},
	})
	if err != nil {
		return err
	}
	if err := c.applyNetwork(ctx, flannelManifest, "CONFIGURATION", conf); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if err := c.connectPods(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// flannelImage is that of flannel's daemon, which calls programs of netfilter: the node's own.
func (c *Cluster) flannelImage() (string, error) {
	program, err := control.BuildOf("flanneld", "tests/cluster/flannel", "github.com/flannel-io/flannel", "CGO_ENABLED=1", "CGO_LDFLAGS=-static")
	if err != nil {
		return "", err
	}
	file := filepath.Join(c.Lab.Dir, "flannel.tar")
	return file, image.Image{Name: "flannel:latest", Program: program, Path: "/flanneld", Entrypoint: []string{"/flanneld"}}.Write(file)
}

// assignPods gives each node its pods' addresses, as a controller manager with --allocate-node-cidrs does.
func (c *Cluster) assignPods(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := c.assignPodsOf(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// assignPodsOf waits for the Node, which its kubelet makes.
func (c *Cluster) assignPodsOf(ctx context.Context, n *Node) error {
	var subnets []string
	for _, s := range n.PodSubnets() {
		subnets = append(subnets, s.String())
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"podCIDR": subnets[0], "podCIDRs": subnets}})
	if err != nil {
		return err
	}
	var last error
	err = lab.Await(patience, func() bool {
		_, last = c.API.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return last == nil || ctx.Err() != nil
	})
	return errors.Join(err, last)
}

// connectPods writes the configuration that flannel's CNI plugin, which is a module of its own, has the plugin bridge called with.
func (c *Cluster) connectPods(ctx context.Context, n *Node) error {
	var said string
	var last error
	err := lab.Await(patience, func() bool {
		said, last = n.Run(ctx, nil, "cat", "/run/flannel/subnet.env")
		return last == nil || ctx.Err() != nil
	})
	if err := errors.Join(err, last); err != nil {
		return c.withLogs(ctx, fmt.Errorf("wait for flannel: %w", err), "kube-flannel", "flannel")
	}
	said = said[strings.Index(said, "FLANNEL_MTU=")+len("FLANNEL_MTU="):]
	mtu, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(said, "\n", 2)[0]))
	if err != nil {
		return fmt.Errorf("read the MTU that flannel says: %w", err)
	}
	bridge := Network{Plugin: Plugin{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false, "mtu": mtu}}
	text, err := bridge.config(n.PodSubnets())
	if err != nil {
		return err
	}
	_, err = n.Run(ctx, strings.NewReader(text), "tee", networkFile) // containerd reads what is written, not what is moved there
	return err
}
