// SPDX-License-Identifier: Apache-2.0

// Package journal keeps what happened of late, for people: packets that a Service did not get, and what was published and why. Its rows
// are those of `nearlb drops` and `nearlb changes`, one JSON object a line. All of it is bounded in bytes.
package journal

import "time"

// Drop is a sampled packet that was dropped or rejected. What is not known is "".
type Drop struct {
	Node      string    `json:"node"`
	Time      time.Time `json:"time"`
	Verdict   string    `json:"verdict"` // drop, reject
	Reason    string    `json:"reason"`  // "no-local-endpoints"
	Service   string    `json:"service"` // "namespace/name" whose the packet's destination is
	Port      string    `json:"port"`    // name of the Service's port, which may be empty
	Client    string    `json:"client"`  // where the packet came from: address and port, or the address alone
	ClientPod string    `json:"client_pod"`
	Frontend  string    `json:"frontend"` // where it went to, likewise; of a reply on its way back no frontend
	Protocol  string    `json:"protocol"`
	Hook      string    `json:"hook"` // from_pod, from_net, sock ...
}

// Unsampled counts the packets that were dropped or rejected, and of which no Drop tells: each processor writes a few events a second.
type Unsampled struct {
	Since   time.Time `json:"since"`
	Packets uint64    `json:"packets"`
}
