// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// devicesOf is what the table devices should say. The sources must have their indexes already.
func (t *Tables) devicesOf(c *Config) map[uint32]bpf.NearlbDevice {
	all := map[uint32]bpf.NearlbDevice{}
	for ifindex, d := range c.Devices {
		of := bpf.NearlbDevice{Source4: t.sources.index(d.Source4), Source6: t.sources.index(d.Source6)}
		of.Others4, of.Others6 = t.sources.bits(d.Others)
		all[ifindex] = of
	}
	for _, ifindex := range c.Pods {
		if _, network := all[ifindex]; !network {
			all[ifindex] = bpf.NearlbDevice{Pod: 1}
		}
	}
	return all
}

// writeDevices brings the table devices up to date. A device that has no room does not keep the others.
func (t *Tables) writeDevices(c *Config) error {
	live := maps.Collect(t.store.devices.all())
	if err := t.store.devices.err(); err != nil {
		return fmt.Errorf("read table devices: %w", err)
	}
	var errs unwritten
	wanted := t.devicesOf(c)
	for _, ifindex := range sortedKeys(live) {
		if _, asked := wanted[ifindex]; !asked {
			errs.add(t.store.devices.remove(ifindex))
		}
	}
	for _, ifindex := range sortedKeys(wanted) {
		if now, found := live[ifindex]; found && now == wanted[ifindex] {
			continue
		}
		if err := t.store.devices.put(ifindex, wanted[ifindex]); err != nil {
			errs.add(put(fmt.Sprintf("device %d", ifindex), err, bpf.NearlbMapDevices, t.store.devices.room()))
		}
	}
	return errs.join()
}

// devices compares the live table with what was configured.
func (a *audit) devices() error {
	t := a.t
	if t.config == nil {
		return nil
	}
	live := maps.Collect(t.store.devices.all())
	if err := t.store.devices.err(); err != nil {
		return err
	}
	wanted := t.devicesOf(t.config)
	for ifindex := range live {
		if _, asked := wanted[ifindex]; asked {
			continue
		}
		if err := a.note("devices", fmt.Sprint(ifindex), "belongs to nothing", func() error { return t.store.devices.remove(ifindex) }); err != nil {
			return err
		}
	}
	for ifindex, want := range wanted {
		if now, found := live[ifindex]; found && now == want {
			continue
		}
		mend := func() error { return t.store.devices.put(ifindex, want) }
		if err := a.note("devices", fmt.Sprint(ifindex), "is missing or has other sources", mend); err != nil {
			return err
		}
	}
	return nil
}

func sortedKeys[V any](m map[uint32]V) []uint32 { return slices.Sorted(maps.Keys(m)) }

// valid leaves out missing addresses.
func valid(all []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(all, func(a netip.Addr) bool { return !a.IsValid() })
}
