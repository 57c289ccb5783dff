// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// checkPorts says whether the source ports of SNAT are used for something else: by the host's own connections, or by a
// NodePort. Where no agent ran, it looks at the ports that one would take by default.
func checkPorts(pins *pinFlags) checkRow {
	row := checkRow{Subject: "source ports", Result: good}
	ports, taken := maps.DefaultSNATPorts(), ""
	err := pins.read(func(reader *maps.Reader) error {
		if told := reader.SNATPorts(); told.Count() > 0 {
			ports = told
		}
		for frontend, err := range reader.Frontends() {
			if err == nil && frontend.Kind == string(lb.KindNodePort) && ports.Contains(frontend.FrontendPort) {
				taken = fmt.Sprintf("NodePort %d of Service %s is one of the source ports of SNAT (--snat-ports %s): choose others", frontend.FrontendPort,
					frontend.Service, ports)
			}
		}
		return nil
	})
	row.Detail = ports.String()
	if err == nil && taken != "" {
		row.Result, row.Detail = warning, taken
	}
	if err := agent.PortOverlap(ports); err != nil {
		row.Result, row.Detail = warning, err.Error()
	}
	return row
}
