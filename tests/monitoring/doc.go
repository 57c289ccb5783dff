// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests manifests/monitoring against real agents under real traffic: every expression of the dashboard and of
// the alerts is evaluated by Prometheus' own engine over what the agents were scraped for. A module of its own: nearlb does not
// depend on Prometheus.
package monitoring
