// SPDX-License-Identifier: Apache-2.0

package decide_test

import "github.com/nearlb/nearlb/pkg/lb"

// This file continues the second model: topology keys as the proxy of Kubernetes 1.17 to 1.20 took them (FilterTopologyEndpoint,
// told step by step with maps), and the distribution by place.

// oracleFilter has the cases of the old algorithm, its two special ones for a node without labels included.
func oracleFilter(nodeLabels map[string]string, keys []string, eps []lb.Endpoint, topology func(lb.Endpoint) map[string]string) []lb.Endpoint {
	if len(keys) == 0 {
		return eps
	}
	var filtered []lb.Endpoint
	if len(nodeLabels) == 0 {
		if keys[len(keys)-1] == "*" {
			return eps
		}
		return filtered
	}
	for _, key := range keys {
		if key == "*" {
			return eps
		}
		want, found := nodeLabels[key]
		if !found {
			continue
		}
		for _, e := range eps {
			if value, found := topology(e)[key]; found && value == want {
				filtered = append(filtered, e)
			}
		}
		if len(filtered) > 0 {
			return filtered
		}
	}
	return filtered
}

func oracleKeys(node lb.Node, keys []string, eps []lb.Endpoint) []lb.Endpoint {
	return oracleFilter(oracleMap(node.Labels, node.Zone, node.Region), keys, eps, func(e lb.Endpoint) map[string]string {
		return oracleMap(e.Labels, e.Zone, e.Region)
	})
}

// oracleMap: what is known of zone and region without the Node stands in for labels that it does not have.
func oracleMap(labels lb.Labels, zone, region string) map[string]string {
	all := map[string]string{}
	if zone != "" {
		all["topology.kubernetes.io/zone"] = zone
	}
	if region != "" {
		all["topology.kubernetes.io/region"] = region
	}
	for _, l := range labels {
		all[l.Key] = l.Value
	}
	return all
}

// oracleUsable: ready ones; those that serve while terminating when none is ready.
func oracleUsable(eps []lb.Endpoint) []lb.Endpoint {
	var ready, leaving []lb.Endpoint
	for _, e := range eps {
		if e.Ready {
			ready = append(ready, e)
		} else if e.Serving && e.Terminating {
			leaving = append(leaving, e)
		}
	}
	if len(ready) > 0 {
		return ready
	}
	return leaving
}

// oraclePlace chooses among ready endpoints; none ready gives none, and the terminating ones come by the rule of the others.
func oraclePlace(node lb.Node, distribution string, eps []lb.Endpoint) []lb.Endpoint {
	var onNode, inZone, all []lb.Endpoint
	for _, e := range eps {
		if !e.Ready {
			continue
		}
		all = append(all, e)
		if node.Name != "" && e.Node == node.Name {
			onNode = append(onNode, e)
		}
		if node.Zone != "" && e.Zone == node.Zone {
			inZone = append(inZone, e)
		}
	}
	if distribution == "PreferSameNode" && len(onNode) > 0 {
		return onNode
	}
	if len(inZone) > 0 {
		return inZone
	}
	return all
}
