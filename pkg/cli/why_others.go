// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"slices"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/table"
)

// otherProgram is a program or filter of somebody else, a CNI's or a NetworkPolicy's, that sees a pod's packets at its device as nearlb does:
// what it drops or sends elsewhere nearlb does not see, or cannot help.
type otherProgram struct {
	Device string        `json:"device"`
	ID     uint32        `json:"programId"` // 0: a filter that is no program
	Name   string        `json:"name"`      // as the kernel has it; "" where that may not be asked, as in a container
	Hook   string        `json:"hook"`      // ingress: what the pod sends; egress: the answers to it
	Method attach.Method `json:"method"`    // tcx, clsact
	After  bool          `json:"after"`     // it sees packets after nearlb
}

// noteOthers notes those of a device.
func (s *seen) noteOthers(device attach.DeviceRow, linkDir string) {
	neighbours, err := attach.Neighbours(linkDir, device.Ifindex)
	if err != nil {
		return // the device went
	}
	for _, n := range neighbours {
		other := otherProgram{device.Device, n.ID, n.Name, n.Hook, n.Method, n.After}
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
		label, text := other.text()
		table.WriteFolded(w, width, label, table.Printable(text))
	}
}

func (o *otherProgram) text() (label, text string) {
	name := o.Name
	switch {
	case o.ID != 0 && name == "":
		name = fmt.Sprintf("program %d", o.ID)
	case o.ID != 0:
		name = fmt.Sprintf("%s (%s program %d)", name, o.Method, o.ID)
	default:
		name = fmt.Sprintf("a filter (%s %s)", o.Method, name)
	}
	switch {
	case o.Hook != "ingress":
		return "answers ", name + " sees the answers to the client on " + o.Device + ", too: what it drops never comes to it"
	case o.After:
		return "after   ", name + " sees the client's packets on " + o.Device + " after nearlb, those that go on through the host: what it drops never comes to the backend"
	}
	return "before  ", name + " sees the client's packets on " + o.Device + " first: what it drops never comes to nearlb"
}
