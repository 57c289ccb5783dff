// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"net/netip"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Outside is a client off the cluster, which all tests share.
func (c *Cluster) Outside() *lab.Outside {
	c.T.Helper()
	return c.OutsideHost("outside", func(*lab.Outside) error { return nil })
}

// OutsideHost is a host off the cluster by its name, which all tests share; prepare is called for a new one.
func (c *Cluster) OutsideHost(name string, prepare func(*lab.Outside) error) *lab.Outside {
	c.T.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.outside[name]; o != nil {
		return o
	}
	o, err := c.AddOutside(lab.OutsideOptions{Name: name})
	if err == nil {
		err = prepare(o)
	}
	if err != nil {
		c.T.Fatal(err)
	}
	c.outside[name] = o
	return o
}

// VIP is an address of each family that nobody had before, and that the router sends to a node, as a load balancer would.
func (c *Cluster) VIP(to *Node) (four, six netip.Addr) {
	c.T.Helper()
	c.mu.Lock()
	c.vips++
	number := c.vips
	c.mu.Unlock()
	four = netip.AddrFrom4([4]byte{198, 51, 100, byte(number)})
	six = netip.MustParseAddr(fmt.Sprintf("fd98::1:%x", number))
	c.must(to.Attract(netip.PrefixFrom(four, 32), netip.PrefixFrom(six, 128)))
	return four, six
}
