// SPDX-License-Identifier: Apache-2.0

package watch

import corev1 "k8s.io/api/core/v1"

// taintToBeDeleted is what the cluster autoscaler puts on a Node before it deletes it, as kube-proxy knows it.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// isLeaving tells whether a Node is about to be deleted. A cordoned one, which gets no new pods, is not.
func isLeaving(in *corev1.Node) bool {
	if in.DeletionTimestamp != nil {
		return true
	}
	for _, taint := range in.Spec.Taints {
		if taint.Key == taintToBeDeleted {
			return true
		}
	}
	return false
}

// NodeEligible is Source's, where the objects come from files: a Node that none tells of may get traffic.
func (s *store) NodeEligible() bool {
	known, leaving := s.ownNode()
	return !known || !leaving
}

// NodeEligible is Source's, where the objects come from an API server: once they are listed, the Node must be among them, unless
// so much is missing that its absence says nothing.
func (c *cluster) NodeEligible() bool {
	c.mu.Lock()
	synced := c.synced
	c.mu.Unlock()
	known, leaving := c.ownNode()
	return !synced || known && !leaving || !known && c.guard.blind()
}

// ownNode tells whether there is an object of the own Node, and whether that is about to be deleted.
func (s *store) ownNode() (known, leaving bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	own := s.nodes[s.cfg.Name]
	if own == nil || s.ownGone {
		return false, false
	}
	return true, own.leaving
}
