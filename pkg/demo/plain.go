// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"strings"
)

// plain prints line by line, for a pipe or a log.
type plain struct{ out io.Writer }

func (p *plain) begin(d *demo) {
	fmt.Fprintln(p.out, "nearlb demo: three nodes in two zones, one agent on each; a server and a client pod on every node")
	for i, n := range d.nodes {
		fmt.Fprintf(p.out, "  %s zone %s: %s (%s, %s), %s, agent process %d\n", n.Name, n.Options.Zone,
			d.servers[i].Name, d.servers[i].V4, d.servers[i].V6, d.clients[i].Name, d.agents[i].PID())
	}
	fmt.Fprintf(p.out, "every client asks %s and %s port %d, over TCP and UDP, all the time\n", clusterIP4, clusterIP6, servicePort)
}

func (p *plain) follow(*demo, <-chan struct{}) {}

func (p *plain) step(d *demo, r Result) {
	fmt.Fprintf(p.out, "\nstep %d: %s\n", r.Number, r.Title)
	fmt.Fprintf(p.out, "  expected  %s\n", p.outcomes(d, r.Want))
	fmt.Fprintf(p.out, "  seen      %s\n", p.outcomes(d, r.Seen))
	fmt.Fprintf(p.out, "  arrived at every client after %s; %d connections and datagrams, %d lost, %d wrong\n",
		took(r), r.Requests, r.Lost, r.Wrong)
	if r.Refusal > 0 {
		fmt.Fprintf(p.out, "  slowest refusal after %s\n", short(r.Refusal))
	}
	fmt.Fprintf(p.out, "  %s\n", r.Verdict())
}

func (p *plain) outcomes(d *demo, outcomes []string) string {
	var parts []string
	for i, o := range outcomes {
		part := d.nodes[i].Name + " " + o
		if t := d.tier(i, o); t != "" {
			part += " (" + t + ")"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

func (p *plain) end(d *demo, held Held) {
	fmt.Fprintln(p.out)
	for _, line := range d.summary(held) {
		fmt.Fprintln(p.out, line)
	}
}

func (p *plain) hold(d *demo) {
	fmt.Fprintln(p.out)
	for _, line := range d.invitation() {
		fmt.Fprintln(p.out, line)
	}
}
