// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"cmp"
	"slices"
)

// DeviceRow is one program on one device, or on a cgroup, as `nearlb devices` shows it.
type DeviceRow struct {
	Device  string   `json:"device"`  // of a cgroup its directory
	Ifindex int      `json:"ifindex"` // 0 for a cgroup
	Kind    string   `json:"kind"`    // pod, network, cgroup
	Program string   `json:"program"` // from_pod, to_pod, from_net, to_net, from_net_xdp, sock_connect4 ...
	Hook    string   `json:"hook"`    // ingress, egress, xdp; of a cgroup connect4, sendmsg6 ...
	Method  Method   `json:"method"`  // tcx, clsact, xdp-native, xdp-generic, cgroup; "" when it is not attached
	ID      uint32   `json:"programId"`
	Tag     string   `json:"programTag"`
	Link    uint32   `json:"linkId"` // 0 for clsact
	Others  []uint32 `json:"others"` // ids of other TCX programs in the same place that see a packet before ours
	Error   string   `json:"error,omitempty"`
	Note    string   `json:"note,omitempty"` // of xdp: why it is not attached; packets are TC's then
}

// Compare orders by device, then xdp before ingress before egress; of a cgroup, by hook.
func (r DeviceRow) Compare(o DeviceRow) int {
	return cmp.Or(cmp.Compare(r.Device, o.Device), cmp.Compare(r.Ifindex, o.Ifindex), compareHooks(r.Hook, o.Hook))
}

func sortRows(rows []DeviceRow) { slices.SortFunc(rows, DeviceRow.Compare) }
