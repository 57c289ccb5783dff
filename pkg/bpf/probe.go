// SPDX-License-Identifier: Apache-2.0

package bpf

// Finding is something that this kernel lacks, and what follows from it.
type Finding struct {
	Feature string `json:"feature"` // "TCX links"
	Since   string `json:"since"`   // kernel version that brought it
	Fatal   bool   `json:"fatal"`   // nearlb cannot run
	Means   string `json:"means"`   // what follows, or how to mend it
	Error   string `json:"error"`   // the kernel's answer
}

// Probe asks the kernel for what nearlb uses, by trying. Nothing missing is an empty list.
func Probe() []Finding {
	var findings []Finding
	for _, p := range probes() {
		if err := p.try(); err != nil {
			p.Error = err.Error()
			findings = append(findings, p.Finding)
		}
	}
	return findings
}

type probe struct {
	Finding
	try func() error
}
