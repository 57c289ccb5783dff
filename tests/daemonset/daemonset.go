// SPDX-License-Identifier: Apache-2.0

// Package daemonset runs the agent as a kubelet would by the rendered manifests: their command line, environment, capabilities,
// mounts and read-only root, and nothing else of this machine.
//
//	set, err := daemonset.Read(rendered)
//	agent, err := set.Start(node, daemonset.Pod{Program: nearlb, Account: dir, Config: map[string]string{"api-server": plane.URL()}})
//	out, err := set.Exec(node, pod, "status") // as kubectl exec
package daemonset

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"
)

// ErrNone: the documents have no DaemonSet.
var ErrNone = errors.New("no DaemonSet")

// Set is a DaemonSet as rendered, and the container of its agent.
type Set struct {
	appsv1.DaemonSet
	Agent corev1.Container
}

// Read finds the DaemonSet among YAML documents. Unknown fields are errors.
func Read(rendered []byte) (Set, error) {
	for reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(rendered))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return Set{}, ErrNone
		}
		if err != nil {
			return Set{}, err
		}
		if !bytes.Contains(document, []byte("\nkind: DaemonSet\n")) {
			continue
		}
		var s Set
		if err := strict.UnmarshalStrict(document, &s.DaemonSet); err != nil {
			return Set{}, err
		}
		at := slices.IndexFunc(s.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == "agent" })
		if at < 0 {
			return Set{}, errors.New("DaemonSet without a container agent")
		}
		s.Agent = s.Spec.Template.Spec.Containers[at]
		return s, nil
	}
}

// environment is what the container gets on a node. config is the ConfigMap nearlb-config; nil: there is none.
func (s Set) environment(node string, config map[string]string) ([]string, error) {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=" + node}
	for _, e := range s.Agent.Env {
		switch from := e.ValueFrom; {
		case from == nil:
			env = append(env, e.Name+"="+e.Value)
		case from.FieldRef != nil && from.FieldRef.FieldPath == "spec.nodeName":
			env = append(env, e.Name+"="+node)
		case from.ConfigMapKeyRef != nil && from.ConfigMapKeyRef.Name == "nearlb-config":
			value, found := config[from.ConfigMapKeyRef.Key]
			if found {
				env = append(env, e.Name+"="+value)
			} else if from.ConfigMapKeyRef.Optional == nil || !*from.ConfigMapKeyRef.Optional {
				return nil, fmt.Errorf("the container waits: ConfigMap nearlb-config has no key %s", from.ConfigMapKeyRef.Key)
			}
		default:
			return nil, fmt.Errorf("environment %s: no kubelet here knows its source", e.Name)
		}
	}
	return env, nil
}

// Capabilities are those of the container; a privileged one is an error.
func (s Set) Capabilities() ([]string, error) {
	c := s.Agent.SecurityContext
	if c == nil || c.Privileged != nil && *c.Privileged || c.Capabilities == nil || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		return nil, errors.New("the container drops not all capabilities but those that it names")
	}
	var names []string
	for _, capability := range c.Capabilities.Add {
		names = append(names, "CAP_"+string(capability))
	}
	return names, nil
}

// configVolume is in the place of the host's directory of a volume of the ConfigMap nearlb-config.
const configVolume = "ConfigMap nearlb-config"

// mounts pairs the container's directories with the host's.
func (s Set) mounts() ([]mount, error) {
	paths := map[string]string{}
	for _, v := range s.Spec.Template.Spec.Volumes {
		switch {
		case v.HostPath != nil:
			paths[v.Name] = v.HostPath.Path
		case v.ConfigMap != nil && v.ConfigMap.Name == "nearlb-config":
			paths[v.Name] = configVolume
		default:
			return nil, fmt.Errorf("volume %s: no kubelet here knows its source", v.Name)
		}
	}
	var all []mount
	for _, m := range s.Agent.VolumeMounts {
		host, found := paths[m.Name]
		if !found || m.SubPath != "" {
			return nil, fmt.Errorf("mount %s: no volume %s", m.MountPath, m.Name)
		}
		all = append(all, mount{Host: host, Path: m.MountPath, ReadOnly: m.ReadOnly})
	}
	return all, nil
}

// Flag is the value of one of the container's flags; "" without it.
func (s Set) Flag(name string) string {
	for _, arg := range s.Agent.Args {
		if value, found := strings.CutPrefix(arg, "--"+name+"="); found {
			return value
		}
	}
	return ""
}
