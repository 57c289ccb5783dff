// SPDX-License-Identifier: Apache-2.0

// Package kubectl is the plugin `kubectl nearlb`: it runs nearlb's read commands in the agents' pods of all nodes at once, and puts the
// answers together. It goes by what the commands print, which is a contract, and imports none of the packages that run on Linux alone.
// `kubectl nearlb plan` asks no node: it is pkg/plan, as in nearlb.
package kubectl
