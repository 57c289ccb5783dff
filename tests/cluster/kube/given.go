// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Given is a network that somebody brings in a directory, or an engine of NetworkPolicies beside one:
//
//	network.json  what this type says
//	*.tar         images
//	*.yaml        manifests, in which ADDRESS and NUMBER are the API server's, as where there is no kube-proxy
//	plugins/*     programs of CNI plugins, which nodes have beside the reference ones
type Given struct {
	Name       string `json:"name"`
	Neighbours bool   `json:"neighbours"` // nodes are on one segment, and nothing but the network knows the way to pods
	Policies   bool   `json:"policies"`   // it keeps NetworkPolicies
	Plugin     Plugin `json:"plugin"`     // as Network's; without one the network writes the nodes' CNI configuration

	dir string
}

// GivenNetwork reads what a directory describes.
func GivenNetwork(dir string) (Network, error) {
	file := filepath.Join(dir, "network.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return Network{}, err
	}
	given := &Given{dir: dir}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(given); err != nil {
		return Network{}, fmt.Errorf("read %s: %w", file, err)
	}
	if given.Name == "" {
		return Network{}, fmt.Errorf("read %s: name: it has none", file)
	}
	return Network{Name: given.Name, Plugin: given.Plugin, Given: given}, nil
}

func (g *Given) options() lab.Options {
	if g.Neighbours {
		return lab.Options{Network: lab.Shared, Unrouted: true}
	}
	return lab.Options{}
}

// givenPluginDir is where nodes have CNI plugins, the reference ones too: networks install theirs there.
const givenPluginDir = "/opt/cni/bin"

// plugins are the files of this machine that nodes have as CNI plugins, by their path there.
func (g *Given) plugins() map[string]string {
	reference, _ := filepath.Glob(pluginDir + "/*")
	all := map[string]string{}
	for _, file := range append(reference, g.files("plugins/*")...) {
		all[filepath.Join(givenPluginDir, filepath.Base(file))] = file
	}
	return all
}

// files are those of a kind.
func (g *Given) files(pattern string) []string {
	files, err := filepath.Glob(filepath.Join(g.dir, pattern))
	if err != nil {
		panic(err) // only a pattern that is none
	}
	return files
}

// install gives the nodes what the network runs there, and applies its manifests.
func (g *Given) install(ctx context.Context, c *Cluster) error {
	c.say("installing %s", g.Name)
	if err := c.Import(ctx, g.files("*.tar")...); err != nil {
		return err
	}
	if err := c.assignPods(ctx); err != nil {
		return err
	}
	for _, file := range g.files("*.yaml") {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := c.applyNetwork(ctx, string(text)); err != nil {
			return fmt.Errorf("apply %s: %w", file, err)
		}
	}
	return nil
}

// applyNetwork applies manifests in which ADDRESS and NUMBER are the API server's, as where there is no kube-proxy. The pairs are of what
// else stands in them, and what it is.
func (c *Cluster) applyNetwork(ctx context.Context, text string, pairs ...string) error {
	server := c.Plane.Address()
	pairs = append(pairs, "ADDRESS", server.Addr().String(), "NUMBER", fmt.Sprint(server.Port()))
	return c.Plane.ApplyText(ctx, []byte(strings.NewReplacer(pairs...).Replace(text)), metav1.ApplyOptions{})
}

// awaitDaemonSets waits until the network runs on every node. The error has what it says.
func (c *Cluster) awaitDaemonSets(ctx context.Context) error {
	all, err := c.API.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, d := range all.Items {
		if _, err := c.Kubectl(ctx, "-n", d.Namespace, "rollout", "status", "daemonset/"+d.Name, "--timeout", patience.String()); err != nil {
			return c.withLogs(ctx, err, d.Namespace, d.Name)
		}
	}
	return nil
}

// withLogs adds to an error what a DaemonSet says.
func (c *Cluster) withLogs(ctx context.Context, err error, namespace, name string) error {
	pods, _ := c.Kubectl(ctx, "-n", namespace, "get", "pods,events", "-o", "wide")
	log, _ := c.Kubectl(ctx, "-n", namespace, "logs", "daemonset/"+name, "--all-containers", "--tail", "50")
	return fmt.Errorf("%w\n%s\n%s", err, pods, log)
}
