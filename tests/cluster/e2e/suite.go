// SPDX-License-Identifier: Apache-2.0

// Package e2e has Kubernetes' own tests run against a cluster of package kube, with kube-proxy and with nearlb: see the command run.
package e2e

import (
	_ "k8s.io/kubernetes/test/e2e" // whose test program that is: go mod tidy keeps what it needs
)
