// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
)

// ServicePort is where Services are asked unless a test says otherwise.
const ServicePort = 80

// Service is a Service object.
type Service struct {
	Name    string
	cluster *Cluster
}

// makeNamespace makes the namespace of the test's objects, and has them taken away at its end.
func (c *Cluster) makeNamespace() {
	c.T.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.Namespace}}
	_, err := c.API.CoreV1().Namespaces().Create(c.T.Context(), namespace, metav1.CreateOptions{})
	c.must(err)
	c.T.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		all := metav1.ListOptions{}
		if services, err := c.API.CoreV1().Services(c.Namespace).List(ctx, all); err == nil {
			for _, s := range services.Items {
				_ = c.API.CoreV1().Services(c.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{})
			}
		}
		_ = c.API.CoreV1().Endpoints(c.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all)
		_ = c.API.DiscoveryV1().EndpointSlices(c.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all)
	})
}

// Service makes a Service that selects app=NAME, with addresses of both families, port 80 to TargetPort over TCP and UDP.
// change, if there is any, makes it another one before it is created. All nodes know it when it is returned, unless it is another proxy's: to who
// asks before, it is an address that nobody has.
func (c *Cluster) Service(name string, change func(*corev1.Service)) *Service {
	c.T.Helper()
	both := corev1.IPFamilyPolicyRequireDualStack
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.Namespace},
		Spec: corev1.ServiceSpec{
			Selector:       map[string]string{"app": name},
			IPFamilyPolicy: &both,
			Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: ServicePort, TargetPort: intstr.FromInt32(TargetPort)},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: ServicePort, TargetPort: intstr.FromInt32(TargetPort)},
			},
		},
	}
	if change != nil {
		change(o)
	}
	_, err := c.API.CoreV1().Services(c.Namespace).Create(c.T.Context(), o, metav1.CreateOptions{})
	c.must(err)
	s := &Service{Name: name, cluster: c}
	s.awaitKnown()
	return s
}

// Get is the object as it is now.
func (s *Service) Get() *corev1.Service {
	s.cluster.T.Helper()
	o, err := s.cluster.API.CoreV1().Services(s.cluster.Namespace).Get(s.cluster.T.Context(), s.Name, metav1.GetOptions{})
	s.cluster.must(err)
	return o
}

// Update changes the object.
func (s *Service) Update(change func(*corev1.Service)) {
	s.cluster.T.Helper()
	s.update(change, s.cluster.API.CoreV1().Services(s.cluster.Namespace).Update)
}

// UpdateStatus changes its status, as a controller of load balancers does.
func (s *Service) UpdateStatus(change func(*corev1.Service)) {
	s.cluster.T.Helper()
	s.update(change, s.cluster.API.CoreV1().Services(s.cluster.Namespace).UpdateStatus)
}

func (s *Service) update(change func(*corev1.Service), write func(context.Context, *corev1.Service, metav1.UpdateOptions) (*corev1.Service, error)) {
	s.cluster.T.Helper()
	s.cluster.must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		o := s.Get()
		change(o)
		_, err := write(s.cluster.T.Context(), o, metav1.UpdateOptions{})
		return err
	}))
}

// Delete deletes the object, and its slices, which a garbage collector would.
func (s *Service) Delete() {
	s.cluster.T.Helper()
	ctx := s.cluster.T.Context()
	err := s.cluster.API.CoreV1().Services(s.cluster.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{})
	if !apierrors.IsNotFound(err) {
		s.cluster.must(err)
	}
	s.cluster.must(s.cluster.API.DiscoveryV1().EndpointSlices(s.cluster.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + s.Name}))
}

// ClusterIP is the Service's address of a family; invalid if it has none.
func (s *Service) ClusterIP(six bool) netip.Addr {
	s.cluster.T.Helper()
	for _, text := range s.Get().Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil && a.Is6() == six {
			return a
		}
	}
	return netip.Addr{}
}
