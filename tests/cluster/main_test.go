// SPDX-License-Identifier: Apache-2.0

// Package cluster tests nearlb in a real cluster: see package rig.
package cluster

import (
	"testing"

	"github.com/nearlb/nearlb/tests/cluster/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }

func TestAServiceIsServedFromTheControllersSlices(t *testing.T) {
	c := rig.Shared(t)
	client, one, two := c.Client(0, "client"), c.Server("web", "one", 0), c.Server("web", "two", 2)
	web := c.Service("web", nil)
	web.AwaitServers(client, one, two)
	one.SetReady(false)
	web.AwaitServers(client, two)
}
