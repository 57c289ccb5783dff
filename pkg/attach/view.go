// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"
)

// change is what the kernel's news say has to be read again. The zero value is nothing.
type change struct {
	devices   map[int]bool // by ifindex: they came, went or differ, or somebody took filters away from them
	addresses bool         // of any device
	routes    bool         // default ones
	all       bool         // nobody knows what
}

func (c *change) add(other change) {
	for ifindex := range other.devices {
		c.device(ifindex)
	}
	c.addresses = c.addresses || other.addresses
	c.routes = c.routes || other.routes
	c.all = c.all || other.all
}

func (c *change) device(ifindex int) {
	if c.devices == nil {
		c.devices = map[int]bool{}
	}
	c.devices[ifindex] = true
}

// view is what the kernel last said of the namespace's devices.
type view struct {
	links     map[int]netlink.Link // by ifindex, as all
	addresses map[int][]address
	routed    map[int]bool // they have a default route
}

// read reads everything.
func (v *view) read(h *netlink.Handle) error {
	links, err := complete(h.LinkList)
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	v.links = map[int]netlink.Link{}
	for _, l := range links {
		v.links[l.Attrs().Index] = l
	}
	return errors.Join(v.readAddresses(h), v.readRoutes(h))
}

func (v *view) readAddresses(h *netlink.Handle) (err error) {
	v.addresses, err = addressesByDevice(h)
	return err
}

func (v *view) readRoutes(h *netlink.Handle) (err error) {
	v.routed, err = devicesOfDefaultRoutes(h)
	return err
}

// follow reads again what changed, and adds to c what changed with it.
func (v *view) follow(h *netlink.Handle, c *change) error {
	for ifindex := range maps.Clone(c.devices) {
		others, err := v.readLink(h, ifindex)
		if err != nil {
			return err
		}
		for _, other := range others {
			c.device(other)
			if _, err := v.readLink(h, other); err != nil {
				return err
			}
		}
		if len(v.addresses[ifindex]) > 0 || v.routed[ifindex] { // the kernel takes routes away from a device that goes down without a word
			c.addresses, c.routes = true, true
		}
	}
	if c.addresses {
		if err := v.readAddresses(h); err != nil {
			return err
		}
	}
	if c.routes {
		return v.readRoutes(h)
	}
	return nil
}

// readLink reads one device again, and gives those of which the kernel says something else because of it: the other end of a pair that
// is, or was, in this namespace.
func (v *view) readLink(h *netlink.Handle, ifindex int) (others []int, err error) {
	var notFound netlink.LinkNotFoundError
	l, err := h.LinkByIndex(ifindex)
	switch {
	case errors.As(err, &notFound):
		for other, link := range v.links {
			if a := link.Attrs(); a.ParentIndex == ifindex && a.NetNsID < 0 {
				others = append(others, other)
			}
		}
		delete(v.links, ifindex)
		return others, nil
	case err != nil:
		return nil, fmt.Errorf("read device: %w", err)
	}
	v.links[ifindex] = l
	if a := l.Attrs(); a.ParentIndex > 0 && a.NetNsID < 0 && v.links[a.ParentIndex] != nil {
		others = append(others, a.ParentIndex)
	}
	return others, nil
}

// devices are those of the view with what the choice of devices looks at, by ifindex.
func (v *view) devices() []device {
	tagged := map[int]bool{}
	for _, l := range v.links {
		if l.Type() == "vlan" {
			tagged[l.Attrs().ParentIndex] = true
		}
	}
	devices := make([]device, 0, len(v.links))
	for _, ifindex := range slices.Sorted(maps.Keys(v.links)) {
		d := deviceOf(v.links[ifindex])
		d.vlans, d.addresses, d.defaultRoute = tagged[ifindex], v.addresses[ifindex], v.routed[ifindex]
		devices = append(devices, d)
	}
	return devices
}
