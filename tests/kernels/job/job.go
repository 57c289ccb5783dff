// SPDX-License-Identifier: Apache-2.0

// Package job is what the host and the guest of tests/kernels say to each other: the job is a file in the guest, the events
// come back through its second serial port, one JSON object a line.
package job

// File is where the guest finds its job.
const File = "/job.json"

// Port is where the guest writes its events.
const Port = "/dev/ttyS1"

// Job is what a guest is to do.
type Job struct {
	Modules []string // files of kernel modules, in the order of loading
	Runs    []Run
}

// Run is one program to run.
type Run struct {
	Dir     string
	Command []string
	Env     []string
	Seconds int // it is ended after that many
}

// Event is what the guest tells. One with Output is a piece of what run number Run printed; one with Ended says that it is
// over.
type Event struct {
	Run    int
	Output string `json:",omitempty"`
	Ended  *Ended `json:",omitempty"`
	Error  string `json:",omitempty"` // the guest itself failed, and does nothing more
	Done   bool   `json:",omitempty"` // all runs are over
}

// Ended is how a run ended.
type Ended struct {
	Status  string // "": exit status 0
	Seconds float64
	CPU     float64 // seconds of processor time that the machine had had by then; the host adds it
}
