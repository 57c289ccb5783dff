// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
)

// OutsideOptions describe a host outside of the cluster. Name is required.
type OutsideOptions struct {
	Name string
	// PathMTU puts a router of the host's own in front of it, whose link to the lab's router has this MTU; 0: no such router.
	// Not in a Shared network.
	PathMTU int
}

// Outside is a host that is no part of the cluster: behind the router, or on the nodes' segment if they share one.
type Outside struct {
	Host
	lab    *Lab
	number int        // from 1
	hop    *Namespace // the router of its own, if any
}

// AddOutside adds a host outside of the cluster. At most 60 fit the address plan.
func (l *Lab) AddOutside(options OutsideOptions) (*Outside, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := &Outside{lab: l, number: len(l.outside) + 1}
	var err error
	if o.Namespace, err = newNamespace(options.Name); err != nil {
		return nil, err
	}
	l.outside = append(l.outside, o)
	plugs := o.plugs()
	o.V4, o.V6 = plugs[0].own, plugs[1].own
	if options.PathMTU != 0 {
		err = o.connectByHop(options.PathMTU, plugs)
	} else {
		err = l.plug(o.Namespace, "eth0", o.port(), l.options.MTU, plugs...)
	}
	if err != nil {
		return nil, fmt.Errorf("connect %s: %w", options.Name, err)
	}
	return o, nil
}

func (o *Outside) plugs() []plug {
	if o.lab.options.Network == Shared {
		return []plug{{onSegment4(o.number), uplink4(0, true), 16}, {onSegment6(o.number), uplink6(0, true), 32}}
	}
	return []plug{
		{outside4(o.number, false), outside4(o.number, true), 30},
		{outside6(o.number, false), outside6(o.number, true), 64},
	}
}

// port is the router's end of the link.
func (o *Outside) port() string { return fmt.Sprintf("outside%d", o.number) }

// connectByHop makes the host's own router.
func (o *Outside) connectByHop(mtu int, plugs []plug) (err error) {
	if o.hop, err = newNamespace(o.Name + "'s router"); err != nil {
		return err
	}
	if err := o.hop.forward(); err != nil {
		return err
	}
	gateways := []plug{{hop4(false), hop4(true), 30}, {hop6(false), hop6(true), 64}}
	if err := o.lab.plug(o.hop, "up", o.port(), mtu, gateways...); err != nil {
		return err
	}
	if err := join(end{o.hop, "down"}, end{o.Namespace, "eth0"}, o.lab.options.MTU); err != nil {
		return err
	}
	for i, p := range plugs {
		err := errors.Join(
			o.hop.addAddress("down", netip.PrefixFrom(p.router, p.bits)),
			o.addAddress("eth0", netip.PrefixFrom(p.own, p.bits)),
			o.addRoute("eth0", everything(p.own), p.router),
			o.lab.Router.addRoute(o.port(), netip.PrefixFrom(p.own, p.bits).Masked(), gateways[i].own),
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// Attract has the router send packets for these addresses to the host, which has no router of its own.
func (o *Outside) Attract(addresses ...netip.Addr) error {
	device := o.port()
	if o.lab.options.Network == Shared {
		device = segmentName
	}
	for _, a := range addresses {
		if err := o.lab.Router.addRoute(device, single(a), o.Address(a.Is6())); err != nil {
			return err
		}
	}
	return nil
}

func (o *Outside) close() error { return errors.Join(o.Host.close(), o.hop.close()) }
