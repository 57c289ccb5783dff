// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/tests/privileged"
)

// A veth hands datagrams on uncut until it is told not to, and is left alone from then on; what it does with segments of TCP stays as it was, and so
// does a device that hands nothing to another kernel.
func TestDatagramsAreCutBeforeTheyLeaveForAnotherKernel(t *testing.T) {
	privileged.Namespace(t, func(*os.File) {
		for _, c := range []struct {
			link netlink.Link
			cuts bool
		}{
			{&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up"}, PeerName: "router"}, true},
			{&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}, false},
		} {
			if err := netlink.LinkAdd(c.link); err != nil {
				t.Fatal(err)
			}
			device := NetworkDevice{Name: c.link.Attrs().Name, Ifindex: c.link.Attrs().Index}
			before, err := askEthtool(device.Ifindex, ethtoolFeaturesGet)
			if err != nil || !slices.Contains(before, cutsDatagrams) {
				t.Fatalf("features of %s: %q, %v", device.Name, before, err)
			}
			for _, want := range []bool{c.cuts, false} {
				if changed, err := CutDatagrams(device); err != nil || changed != want {
					t.Errorf("%s changed: %v, %v; want %v", device.Name, changed, err, want)
				}
			}
			want := slices.DeleteFunc(slices.Clone(before), func(name string) bool { return c.cuts && name == cutsDatagrams })
			if now, err := askEthtool(device.Ifindex, ethtoolFeaturesGet); err != nil || !slices.Equal(now, want) {
				t.Errorf("features of %s: %q, %v; want %q", device.Name, now, err, want)
			}
		}
		if changed, err := CutDatagrams(NetworkDevice{Name: "gone", Ifindex: 99}); err != nil || changed {
			t.Errorf("a device that is gone changed: %v, %v", changed, err)
		}
	})
}
