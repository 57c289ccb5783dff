// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// service-semantics.md 1.3: deletion and the autoscaler's taint count, cordon does not.
func TestANodeThatIsAboutToBeDeletedGetsNoMoreTraffic(t *testing.T) {
	withAPI(t, nil, func(a *api) {
		want := func(when string, eligible bool) {
			t.Helper()
			if got := a.source.NodeEligible(); got != eligible {
				t.Errorf("%s: eligible %v", when, got)
			}
		}
		want("as it is", true)
		n := apiNode("n1", "a")
		n.Spec.Unschedulable = true
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
		a.setNode(n)
		want("cordoned", true)
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule})
		a.setNode(n)
		want("tainted", false)
		n.Spec.Taints = nil
		a.setNode(n)
		want("without taints", true)
		n.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		a.setNode(n)
		want("being deleted", false)
		a.setNode(apiNode("n1", "a"))
		want("saved", true)
		must(t, a.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}))
		synctest.Wait()
		want("deleted", false)
		if got := a.source.Node().Zone; got != "a" {
			t.Errorf("zone %q; want what the Node said", got)
		}
		_, err := a.client.CoreV1().Nodes().Create(t.Context(), apiNode("n1", "a"), metav1.CreateOptions{})
		must(t, err)
		synctest.Wait()
		want("back as it was", true)
	}, apiNode("n1", "a"), apiNode("n2", "a"))
}

func TestANodeThatTheClusterDoesNotKnowGetsNoTraffic(t *testing.T) {
	withAPI(t, nil, func(a *api) {
		if a.source.NodeEligible() {
			t.Error("eligible, and the cluster has no such Node")
		}
	}, apiNode("n2", "a"))
	if source := Kubernetes(nil, NodeConfig{Name: "n1"}, nil); !source.NodeEligible() {
		t.Error("not eligible before anything was listed")
	}
}

func TestOfFilesANodeCountsIfThereIsOne(t *testing.T) {
	dir, source, r := follow(t, map[string]string{"web.yaml": webService})
	if !source.NodeEligible() {
		t.Error("not eligible without a Node")
	}
	changes := r.nodeChanges()
	file := filepath.Join(dir, "node.yaml")
	write(t, file, "{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}}")
	r.until(t, "the Node", func() bool { return r.nodeChanges() > changes })
	if source.NodeEligible() {
		t.Error("eligible with the taint")
	}
	write(t, file, nodeObject("n1", ""))
	r.until(t, "the Node without taint", func() bool { return source.NodeEligible() })
}
