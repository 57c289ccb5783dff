// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bypass"
)

// Packets of the shortcut come by every device that has programs.
func TestEveryDeviceWithProgramsIsLookedAtBeforeItsPacketsPassTheStack(t *testing.T) {
	got := PassedDevices(attach.Network{
		Devices: []attach.NetworkDevice{{Name: "eth0", Ifindex: 2}},
		Peers:   []attach.PodDevice{{Name: "pod1", Ifindex: 3}},
		Others:  []attach.PodDevice{{Name: "tap1", Ifindex: 4}},
	})
	want := []bypass.Device{{Name: "eth0", Ifindex: 2}, {Name: "pod1", Ifindex: 3, Pod: true}, {Name: "tap1", Ifindex: 4}}
	sorted := slices.SortedFunc(slices.Values(got), func(a, b bypass.Device) int { return a.Ifindex - b.Ifindex })
	if !slices.Equal(sorted, want) {
		t.Errorf("looked at %v, want %v", sorted, want)
	}
}
