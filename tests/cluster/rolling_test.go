// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// rollout is a Service with a Deployment's worth of pods, and clients of every kind that use it all the time.
type rollout struct {
	*rig.Cluster
	web  *rig.Service
	load *rig.Load
	pods []*rig.Pod
	made int
}

const rolloutNodePort = 9101

// newRollout makes the Service with externalTrafficPolicy Cluster, or Local: then a client outside asks each node for its own pods.
func newRollout(t *testing.T, replicas int, policy corev1.ServiceExternalTrafficPolicy) *rollout {
	r := &rollout{Cluster: rig.Shared(t)}
	for range replicas {
		r.pods = append(r.pods, r.pod(false))
	}
	r.web = r.Service("web", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, policy
		nodePorts(s, rolloutNodePort)
	})
	clients := []rig.Host{r.Client(0, "client"), r.Client(2, "client"), r.Node(1)}
	for _, client := range clients {
		r.web.AwaitServers(client, r.pods...)
	}
	r.load = r.StartLoad(r.web.OnClusterIP(), rig.Ways(), clients...)
	for n := range 3 {
		onNode := rig.AtHost(r.Node(n), rolloutNodePort)
		if policy == corev1.ServiceExternalTrafficPolicyLocal {
			r.AwaitServers(r.Outside(), onNode, rig.Ways(), r.on(n)...)
		} else if n > 0 {
			break // one node does as well as another
		} else {
			r.AwaitServers(r.Outside(), onNode, rig.Ways(), r.pods...)
		}
		r.load.And(r.StartLoad(onNode, rig.Ways(), r.Outside()))
	}
	return r
}

// on are the pods of a node.
func (r *rollout) on(node int) (out []*rig.Pod) {
	for _, p := range r.pods {
		if p.On == r.Node(node) {
			out = append(out, p)
		}
	}
	return out
}

// pod is the Deployment's next one. Its node is the next one, too.
func (r *rollout) pod(notReady bool) *rig.Pod {
	r.T.Helper()
	r.made++
	return r.NewPod(rig.PodOptions{App: "web", Name: fmt.Sprintf("web-%d", r.made), Node: r.made % 3, NotReady: notReady})
}

// await waits until all nodes choose from these pods and connections that were made before are over.
func (r *rollout) await(pods ...*rig.Pod) {
	r.T.Helper()
	r.web.AwaitChoice(pods...)
	r.load.Round()
}

// finish ends pods that terminate as a program does that ends in good order: it says that it serves no more, does so for a while
// nevertheless, and is gone.
func (r *rollout) finish(pods ...*rig.Pod) {
	r.T.Helper()
	for _, p := range pods {
		p.SetReady(false)
	}
	for _, p := range pods {
		r.web.AwaitLeft(p)
	}
	r.load.Round()
	for _, p := range pods {
		p.Finish()
	}
}

// replace has a new pod for each old one: maxSurge 1, maxUnavailable 0. The one that goes serves until its clients have been told,
// as one with a grace period does.
func (r *rollout) replace() {
	r.T.Helper()
	old := r.pods
	for i, leaving := range old {
		next := r.pod(true)
		r.pods = append(r.pods, next)
		next.SetReady(true)
		r.await(r.pods[i:]...)
		leaving.Terminate()
		r.await(r.pods[i+1:]...)
		r.finish(leaving)
	}
	r.await(r.pods[len(old):]...)
	r.load.End()
}

// A17: while there is one that serves, no connection is lost.
func TestARollingUpdateLosesNoConnection(t *testing.T) {
	newRollout(t, 4, corev1.ServiceExternalTrafficPolicyCluster).replace()
}

// The same where each node has a pod of its own, and the next one comes to the same node.
func TestARollingUpdateWithLocalTrafficPolicyLosesNoConnection(t *testing.T) {
	newRollout(t, 3, corev1.ServiceExternalTrafficPolicyLocal).replace()
}

// All pods are told to go at once, and serve on; the new ones are ready only later. Until then those that terminate are all that
// there is.
func TestPodsThatTerminateServeUntilNewOnesAreReady(t *testing.T) {
	r := newRollout(t, 2, corev1.ServiceExternalTrafficPolicyCluster)
	old := r.pods
	for _, p := range old {
		p.Terminate()
	}
	next := []*rig.Pod{r.pod(true), r.pod(true)}
	r.await(old...)
	next[0].SetReady(true)
	r.await(next[0])
	next[1].SetReady(true)
	r.await(next...)
	r.finish(old...)
	r.await(next...)
	r.load.End()
}
