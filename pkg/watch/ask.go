// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch/kube"
)

// AskAPI asks the API server once for a Service, its EndpointSlices and the node's own Node object: three requests, whatever the cluster's
// size, and all Nodes where the Service's endpoints depend on others. Of what there is not, or is refused, the source has nothing.
func AskAPI(ctx context.Context, client kube.Client, name lb.ServiceName, cfg NodeConfig) (Loaded, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := newStore(cfg)
	err := errors.Join(askService(ctx, client, name, s), askSlices(ctx, client, name, s), askNode(ctx, client, s))
	if svc := s.services[name]; err == nil && svc != nil && svc.picky(cfg) && s.extentOf(name) > nothingOfOthers {
		err = askNodes(ctx, client, s)
	}
	return loaded{s}, err
}

func askService(ctx context.Context, client kube.Client, name lb.ServiceName, s *store) error {
	service, err := client.Services(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err == nil {
		s.takeAsked(service)
	}
	return notFound(err, "Service "+name.String())
}

func askSlices(ctx context.Context, client kube.Client, name lb.ServiceName, s *store) error {
	of := labels.Set{labelServiceName: name.Name}.String()
	list, err := client.EndpointSlices(name.Namespace).List(ctx, metav1.ListOptions{LabelSelector: of})
	if err != nil {
		return fmt.Errorf("ask the API server for the EndpointSlices of Service %s: %w", name, err)
	}
	for i := range list.Items {
		s.takeAsked(&list.Items[i])
	}
	return nil
}

func askNode(ctx context.Context, client kube.Client, s *store) error {
	node, err := client.Nodes().Get(ctx, s.cfg.Name, metav1.GetOptions{})
	if err == nil {
		s.takeAsked(node)
	}
	return notFound(err, "Node "+s.cfg.Name)
}

func askNodes(ctx context.Context, client kube.Client, s *store) error {
	list, err := client.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("ask the API server for Nodes: %w", err)
	}
	for i := range list.Items {
		s.takeAsked(&list.Items[i])
	}
	return nil
}

// notFound is no error.
func notFound(err error, what string) error {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("ask the API server for %s: %w", what, err)
}

// takeAsked takes an object of the API server; the agent tells of what it refuses.
func (s *store) takeAsked(in runtime.Object) {
	if o, refused := convert(in); refused == nil {
		s.apply([]object{o}, nil, &changes{})
	}
}
