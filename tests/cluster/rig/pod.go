// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/nearlb/nearlb/pkg/lab"
)

// TargetPort is where servers serve unless a test says otherwise.
const TargetPort = 8080

// Pod is a namespace of the lab, or a node's own, and a Pod object, whose status the test sets in the kubelet's place. Its server
// names itself as the host: as the object, or with the host's network as the node.
type Pod struct {
	*lab.Host
	Object  string // its name
	On      *Node
	own     *lab.Pod // nil with the host's network
	servers []*lab.Server
	cluster *Cluster
	gone    sync.Once
}

// PodOptions describe a pod.
type PodOptions struct {
	App      string // label app
	Name     string
	Node     int
	Ports    []corev1.ContainerPort // named ones are what named targetPorts mean
	Serve    []uint16               // where its server listens, over TCP and UDP; none: TargetPort
	Silent   bool                   // nothing listens
	NotReady bool
	Labels   map[string]string
	// HostNetwork gives it the node's addresses. Its server listens on these.
	HostNetwork bool
	// Change makes the object another one before it is created.
	Change func(*corev1.Pod)
}

// Server adds a ready pod with label app that serves on TargetPort.
func (c *Cluster) Server(app, name string, node int) *Pod {
	c.T.Helper()
	return c.NewPod(PodOptions{App: app, Name: name, Node: node})
}

// Client adds a pod that the API server does not know of.
func (c *Cluster) Client(node int, name string) *lab.Pod {
	c.T.Helper()
	p, err := c.Node(node).AddPod(name)
	c.must(err)
	c.T.Cleanup(func() {
		if err := p.Delete(); err != nil {
			c.T.Error(err)
		}
	})
	return p
}

// NewPod adds a pod. Its server answers before its object says that it is ready.
func (c *Cluster) NewPod(o PodOptions) *Pod {
	c.T.Helper()
	p := &Pod{Object: o.Name, On: c.Node(o.Node), cluster: c}
	c.T.Cleanup(p.Finish)
	if o.HostNetwork {
		p.Host = &p.On.Host
	} else {
		var err error
		p.own, err = p.On.AddPod(o.Name)
		c.must(err)
		p.Host = &p.own.Host
	}
	if !o.Silent {
		p.serve(o.Serve)
	}
	_, err := c.API.CoreV1().Pods(c.Namespace).Create(c.T.Context(), c.podObject(o), metav1.CreateOptions{})
	c.must(err)
	p.SetReady(!o.NotReady)
	return p
}

func (p *Pod) serve(ports []uint16) {
	p.cluster.T.Helper()
	if len(ports) == 0 {
		ports = []uint16{TargetPort}
	}
	for _, port := range ports {
		server, err := p.Serve(port)
		p.cluster.must(err)
		p.servers = append(p.servers, server)
	}
}

func (c *Cluster) podObject(o PodOptions) *corev1.Pod {
	labels := map[string]string{"app": o.App}
	for key, value := range o.Labels {
		labels[key] = value
	}
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: c.Namespace, Labels: labels},
		Spec: corev1.PodSpec{
			NodeName:    c.Node(o.Node).Name,
			HostNetwork: o.HostNetwork,
			Containers:  []corev1.Container{{Name: "server", Image: "none", Ports: o.Ports}},
		},
	}
	if o.Change != nil {
		o.Change(object)
	}
	return object
}

// SetReady says that the pod runs, and whether it is ready.
func (p *Pod) SetReady(ready bool) {
	p.cluster.T.Helper()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.UpdateStatus(func(s *corev1.PodStatus) {
		s.Phase = corev1.PodRunning
		s.PodIP = p.V4.String()
		s.PodIPs = []corev1.PodIP{{IP: p.V4.String()}, {IP: p.V6.String()}}
		s.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()}}
	})
}

// UpdateStatus changes the status, as a kubelet does.
func (p *Pod) UpdateStatus(change func(*corev1.PodStatus)) {
	p.cluster.T.Helper()
	pods := p.cluster.API.CoreV1().Pods(p.cluster.Namespace)
	ctx := p.cluster.T.Context()
	p.cluster.must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		o, err := pods.Get(ctx, p.Object, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(&o.Status)
		_, err = pods.UpdateStatus(ctx, o, metav1.UpdateOptions{})
		return err
	}))
}

// Terminate is `kubectl delete pod`: the object says from now on that it is to go, and the kubelet's part is yet to be done.
func (p *Pod) Terminate() {
	p.cluster.T.Helper()
	grace := int64(3600)
	p.cluster.must(p.cluster.API.CoreV1().Pods(p.cluster.Namespace).Delete(p.cluster.T.Context(), p.Object, metav1.DeleteOptions{GracePeriodSeconds: &grace}))
}

// Finish is what a kubelet does when the containers have ended: the pod's object and its network are gone.
func (p *Pod) Finish() {
	p.cluster.T.Helper()
	p.gone.Do(func() {
		if err := p.end(); err != nil {
			p.cluster.T.Errorf("end pod %s: %v", p.Object, err)
		}
	})
}

func (p *Pod) end() error {
	err := p.Forget()
	if p.own != nil {
		return errors.Join(err, p.own.Delete())
	}
	for _, s := range p.servers {
		err = errors.Join(err, s.Close())
	}
	return err
}

// Forget takes the object away and leaves the server where it is.
func (p *Pod) Forget() error {
	now := int64(0)
	err := p.cluster.API.CoreV1().Pods(p.cluster.Namespace).Delete(context.Background(), p.Object, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
