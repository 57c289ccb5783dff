// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// Manifests is the directory of objects that the agents follow.
type Manifests struct {
	Dir   string
	parts string // where files are written before they are moved to Dir, on the same file system
}

// Object is anything that becomes one YAML document.
type Object interface{ object() map[string]any }

// Write replaces one file of the directory by these objects, in one step.
func (m *Manifests) Write(file string, objects ...Object) error {
	var text strings.Builder
	for _, o := range objects {
		document, err := yaml.Marshal(o.object())
		if err != nil {
			return fmt.Errorf("write manifest %s: %w", file, err)
		}
		fmt.Fprintf(&text, "---\n%s", document)
	}
	return m.WriteText(file, text.String())
}

// WriteText replaces one file of the directory by this text, in one step.
func (m *Manifests) WriteText(file, text string) error {
	part := filepath.Join(m.parts, file)
	if err := os.WriteFile(part, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write manifest %s: %w", file, err)
	}
	return os.Rename(part, filepath.Join(m.Dir, file))
}

// Remove takes a file out of the directory.
func (m *Manifests) Remove(file string) error { return os.Remove(filepath.Join(m.Dir, file)) }

// Endpoint is one pod in a slice, with its conditions.
type Endpoint struct {
	Pod         *Pod
	Host        *Node // instead of Pod: a pod with the node's own addresses
	Unplaced    bool  // nodeName and zone are not said
	NotReady    bool
	NotServing  bool
	Terminating bool
}

// Slices are the EndpointSlices of a Service, one for each family, as the controller writes them.
type Slices struct {
	Service   string
	Suffix    string // tells several pairs of one Service apart
	Ports     []Port
	Endpoints []Endpoint
	SameNode  bool // hints as for trafficDistribution PreferSameNode: forNodes and forZones, on ready endpoints
}

// Objects are the slices, to be written.
func (s Slices) Objects() []Object { return []Object{slice{s, false}, slice{s, true}} }

type slice struct {
	Slices
	six bool
}

func (s slice) object() map[string]any {
	kindOf := map[bool]string{false: "IPv4", true: "IPv6"}[s.six]
	object := kind("discovery.k8s.io/v1", "EndpointSlice", map[string]any{
		"name":      s.Service + s.Suffix + "-" + strings.ToLower(kindOf),
		"namespace": "default",
		"labels":    map[string]any{"kubernetes.io/service-name": s.Service},
	}, "addressType", kindOf)
	object["ports"] = each(s.Ports, Port.fields)
	object["endpoints"] = each(s.Endpoints, s.endpoint)
	return object
}

func (s slice) endpoint(e Endpoint) map[string]any {
	node := e.Host
	var address netip.Addr
	if node == nil {
		node, address = e.Pod.Node, e.Pod.Address(s.six)
	} else {
		address = node.Address(s.six)
	}
	fields := map[string]any{
		"addresses":  []netip.Addr{address},
		"conditions": map[string]any{"ready": !e.NotReady, "serving": !e.NotServing, "terminating": e.Terminating},
	}
	if e.Host == nil {
		fields["targetRef"] = map[string]any{"kind": "Pod", "namespace": "default", "name": e.Pod.Name}
	}
	if e.Unplaced {
		return fields
	}
	fields["nodeName"] = node.Name
	if node.Options.Zone != "" {
		fields["zone"] = node.Options.Zone
	}
	if s.SameNode && !e.NotReady {
		fields["hints"] = map[string]any{"forNodes": named(node.Name), "forZones": named(node.Options.Zone)}
	}
	return fields
}

// Object is the node's Node object.
func (n *Node) Object() Object { return nodeObject{n} }

type nodeObject struct{ *Node }

func (n nodeObject) object() map[string]any {
	labels := map[string]any{"kubernetes.io/hostname": n.Name}
	if n.Options.Zone != "" {
		labels["topology.kubernetes.io/zone"] = n.Options.Zone
	}
	address := func(a netip.Addr) map[string]any { return map[string]any{"type": "InternalIP", "address": a} }
	return kind("v1", "Node", map[string]any{"name": n.Name, "labels": labels},
		"status", map[string]any{"addresses": each([]netip.Addr{n.V4, n.V6}, address)})
}

func kind(version, name string, metadata map[string]any, field string, value any) map[string]any {
	return map[string]any{"apiVersion": version, "kind": name, "metadata": metadata, field: value}
}

func named(name string) []map[string]any { return []map[string]any{{"name": name}} }

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

func each[T any](in []T, f func(T) map[string]any) []map[string]any {
	out := make([]map[string]any, len(in))
	for i, v := range in {
		out[i] = f(v)
	}
	return out
}
