// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"slices"

	"github.com/nearlb/nearlb/pkg/attach"
)

// otherProgram is a program of somebody else, a CNI's or a NetworkPolicy's, that sees a pod's packets before nearlb's does: what it drops
// or sends elsewhere never comes to nearlb.
type otherProgram struct {
	Device string `json:"device"`
	ID     uint32 `json:"programId"`
	Name   string `json:"name"` // as the kernel has it; "" where that may not be asked, as in a container
}

// noteOthers notes those of a device.
func (s *seen) noteOthers(device attach.DeviceRow) {
	for _, id := range device.Others {
		other := otherProgram{device.Device, id, attach.ProgramName(id)}
		if !slices.Contains(s.others, other) {
			s.others = append(s.others, other)
		}
	}
}

func writeOthers(w io.Writer, width int, others []otherProgram) {
	for i, other := range others {
		if i == 0 {
			fmt.Fprintln(w)
		}
		name := fmt.Sprintf("program %d", other.ID)
		if other.Name != "" {
			name = fmt.Sprintf("%s (program %d)", printable(other.Name), other.ID)
		}
		writeFolded(w, width, "before  ", name+" sees the client's packets on "+printable(other.Device)+" first: what it drops never comes to nearlb")
	}
}
