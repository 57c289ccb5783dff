// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/nearlb/nearlb/pkg/lb"
)

// AskAPI asks the API server once for a Service, its EndpointSlices and the node's own Node object: three requests, whatever the cluster's
// size. Of what there is not, or is refused, the source has nothing. Where served is true the Service is taken for this
// proxy's, whatever its labels say.
func AskAPI(ctx context.Context, client kubernetes.Interface, name lb.ServiceName, cfg NodeConfig, served bool) (Loaded, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var asked []runtime.Object
	service, err := client.CoreV1().Services(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		asked = append(asked, service)
		if served {
			cfg.ProxyName = service.Labels[labelProxyName]
		}
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("ask the API server for Service %s: %w", name, err)
	}
	of := labels.Set{labelServiceName: name.Name}.String()
	list, err := client.DiscoveryV1().EndpointSlices(name.Namespace).List(ctx, metav1.ListOptions{LabelSelector: of})
	if err != nil {
		return nil, fmt.Errorf("ask the API server for the EndpointSlices of Service %s: %w", name, err)
	}
	for i := range list.Items {
		asked = append(asked, &list.Items[i])
	}
	if cfg.Name != "" {
		node, err := client.CoreV1().Nodes().Get(ctx, cfg.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			asked = append(asked, node)
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("ask the API server for Node %s: %w", cfg.Name, err)
		}
	}
	return loaded{storeOf(cfg, asked)}, nil
}

// storeOf has what the API server's own objects say.
func storeOf(cfg NodeConfig, asked []runtime.Object) *store {
	s := newStore(cfg)
	var objects []object
	for _, in := range asked {
		if o, refused := convert(in); refused == nil { // the agent tells of what it refuses
			objects = append(objects, o)
		}
	}
	s.apply(objects, nil, &changes{})
	return s
}
