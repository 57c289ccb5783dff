// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/nearlb/nearlb/pkg/watch"
	"github.com/nearlb/nearlb/pkg/watch/clientset"
)

// source opens where the objects come from, and names it for people.
func source(o Options, config watch.NodeConfig) (watch.Source, string, error) {
	klog.SetLogger(watch.ClientLogger(o.Log)) // client-go has no other place for its log
	switch {
	case o.Source != nil:
		return o.Source, "given", nil
	case o.Manifests != "":
		return watch.Manifests(o.Manifests, config, o.Log), "manifests " + o.Manifests, nil
	}
	login := watch.Login{Kubeconfig: o.Kubeconfig, Servers: o.APIServers, Node: o.NodeName, UserAgent: "nearlb/" + o.Version, Log: o.Log}
	access, err := login.Config()
	if err != nil {
		return nil, "", err
	}
	client, err := clientset.For(access)
	if err != nil {
		return nil, "", err
	}
	origin := "kubernetes"
	if len(o.APIServers) > 0 {
		named := slices.DeleteFunc(slices.Clone(o.APIServers), func(server string) bool { return strings.TrimSpace(server) == "" })
		origin += " at " + strings.Join(named, ", ")
	}
	return watch.Kubernetes(client, config, o.Log), origin, nil
}
