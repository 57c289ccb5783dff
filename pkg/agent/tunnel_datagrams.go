// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/nearlb/nearlb/pkg/attach"
)

// cutDatagrams has network devices that were not looked at hand on no datagrams uncut, which nobody could cut any more once they are out of the tunnel.
// Each is looked at once: what somebody changes later is theirs to change.
func (r *running) cutDatagrams(seen map[int]bool) {
	for _, device := range r.lastNetwork().Devices {
		if seen[device.Ifindex] {
			continue
		}
		seen[device.Ifindex] = true
		switch changed, err := attach.CutDatagrams(device); {
		case err != nil:
			r.daemon.log.Warn("datagrams sent as segments may be lost in the tunnel", "device", device.Name, "error", err)
		case changed:
			r.daemon.log.Info("the kernel cuts datagrams before they leave by the device (tx-udp-segmentation off)", "device", device.Name)
		}
	}
}
