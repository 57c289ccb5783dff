// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"cmp"
	"slices"
)

// DeviceRow is one program on one device, as `nearlb devices` shows it.
type DeviceRow struct {
	Device  string   `json:"device"`
	Ifindex int      `json:"ifindex"`
	Kind    string   `json:"kind"`    // pod
	Program string   `json:"program"` // from_pod, to_pod
	Hook    string   `json:"hook"`    // ingress, egress
	Method  Method   `json:"method"`  // tcx, clsact; "" when it is not attached
	ID      uint32   `json:"programId"`
	Tag     string   `json:"programTag"`
	Link    uint32   `json:"linkId"` // 0 for clsact
	Others  []uint32 `json:"others"` // ids of other TCX programs in the same place that see a packet before ours
	Error   string   `json:"error,omitempty"`
}

// Compare orders by device, then ingress before egress.
func (r DeviceRow) Compare(o DeviceRow) int {
	return cmp.Or(cmp.Compare(r.Device, o.Device), cmp.Compare(r.Ifindex, o.Ifindex), -cmp.Compare(r.Hook, o.Hook))
}

func sortRows(rows []DeviceRow) { slices.SortFunc(rows, DeviceRow.Compare) }
