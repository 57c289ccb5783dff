// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// aim finds the node of the client of `why CLIENT SERVICE`, and says both as nearlb does: an address, and namespace/name.
func (r *request) aim(ctx context.Context, c *cluster) error {
	namespace, rest, err := r.whyArguments()
	if err != nil {
		return err
	}
	namespace = cmp.Or(namespace, c.namespace, "default")
	service := named(rest[1], namespace, "svc", "service", "services")
	client, from := rest[0], ""
	var found *pod
	if address, err := netip.ParseAddr(client); err == nil {
		if found, err = c.podAt(ctx, address); err != nil {
			return err
		}
		if found == nil && len(r.nodes) == 0 {
			return usagef("%s is no pod's address: --node NODE says where its packets come in", client)
		}
	} else {
		in, name, _ := strings.Cut(named(client, namespace, "pod", "pods", "po"), "/")
		found = &pod{}
		if err := c.get(ctx, "api/v1/namespaces/"+in+"/pods/"+name, url.Values{}, found); err != nil {
			return fmt.Errorf("find pod %s/%s: %w", in, name, err)
		}
		if found.Status.PodIP == "" || found.Spec.NodeName == "" {
			return fmt.Errorf("pod %s/%s has no address yet (%s)", in, name, cmp.Or(found.Status.Phase, "phase unknown"))
		}
		client = found.Status.PodIP
	}
	if found != nil {
		if len(r.nodes) > 0 && !slices.Contains(r.nodes, found.Spec.NodeName) {
			return usagef("--node %s: the client is on node %s", strings.Join(r.nodes, ","), found.Spec.NodeName)
		}
		r.nodes = []string{found.Spec.NodeName}
		if from = "pod"; found.Spec.HostNetwork {
			from = "host"
		}
	}
	r.command = append([]string{"why", client, service}, rest[2:]...)
	if from != "" && !r.has("--from") {
		r.command = append(r.command, "--from", from)
	}
	return nil
}

// whyArguments are the client, the Service and nearlb's flags, and the namespace of both where they have none.
func (r *request) whyArguments() (namespace string, rest []string, err error) {
	namespace, rest, err = takeNamespace(r.command[1:])
	if err == nil && (len(rest) < 2 || strings.HasPrefix(rest[0], "-") || strings.HasPrefix(rest[1], "-")) {
		err = usagef("why wants a client and a Service, as pod/cart-0 svc/web")
	}
	return namespace, rest, err
}

// takeNamespace takes -n NAMESPACE out of arguments.
func takeNamespace(args []string) (namespace string, rest []string, err error) {
	for i := 0; i < len(args); i++ {
		name, value, given := strings.Cut(args[i], "=")
		if name != "-n" && name != "--namespace" {
			rest = append(rest, args[i])
			continue
		}
		if !given {
			if i++; i >= len(args) {
				return "", nil, usagef("%s wants a value", name)
			}
			value = args[i]
		}
		namespace = value
	}
	return namespace, rest, nil
}

// named is namespace/name of kind/name, namespace/name, or a name alone.
func named(text, namespace string, kinds ...string) string {
	kind, name, two := strings.Cut(text, "/")
	switch {
	case !two:
		return namespace + "/" + text
	case slices.Contains(kinds, kind) && !strings.Contains(name, "/"):
		return namespace + "/" + name
	case slices.Contains(kinds, kind):
		return name
	}
	return text
}

// podAt is the pod with an address of its own, nil for none.
func (c *cluster) podAt(ctx context.Context, address netip.Addr) (*pod, error) {
	pods, err := list[pod](ctx, c, "api/v1/pods", url.Values{"fieldSelector": {"status.podIP=" + address.String()}})
	if errors.Is(err, errForbidden) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the pod of %s: %w", address, err)
	}
	for i := range pods {
		if p := &pods[i]; !p.Spec.HostNetwork && p.Status.PodIP == address.String() && p.Spec.NodeName != "" && p.Status.Phase == "Running" {
			return p, nil
		}
	}
	return nil, nil
}
