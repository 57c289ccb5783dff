// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"io"
	"time"
)

// PollOften has traces compared often enough for a test.
func (n *News) PollOften() { n.every = 10 * time.Millisecond }

// ServingBy is by a list of IPVS alone.
func ServingBy(virtualServers io.Reader) (s Serving, err error) {
	s.servers, err = readVirtualServers(virtualServers)
	return s, err
}
