// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nearlb/nearlb/tests/rig"
)

// table has a line for each row of the scenes that were played.
func table(played []outcome) string {
	var b strings.Builder
	b.WriteString("| | kube-proxy | nearlb | to reach |\n|---|---:|---:|---:|\n")
	for _, o := range played {
		for _, r := range o.rows {
			fmt.Fprintf(&b, "| %s |", r.title)
			for _, proxy := range []string{"kube-proxy", "nearlb"} {
				text := "-"
				if f, measured := o.figures[proxy]; measured {
					text = r.text(f)
				}
				fmt.Fprintf(&b, " %s |", text)
			}
			fmt.Fprintf(&b, " %s |\n", r.wanted)
		}
	}
	return b.String()
}

const page = `<!-- made by make failover -->
# When backends and nodes die

Clients of four pods on one node open connections by IPv4 and IPv6, as many a second as the table says, to a Service with ten backends on three other nodes, and give up after
%d seconds. All is network namespaces of one machine; nearlb and kube-proxy (nftables) are real processes beside an API server in memory, each in a
cluster of its own, one after the other. %s, nearlb %s, Linux %s, %s.

<picture>
  <source media="(prefers-color-scheme: dark)" srcset="failover-dark.svg">
  <img alt="new connections a second while a node of four of ten backends loses its power: with nearlb they are back within two seconds, with kube-proxy when Kubernetes says so" src="failover-light.svg">
</picture>

%s
A node that loses its power is one from which nothing comes back: Kubernetes takes its endpoints away after %d seconds
(node-monitor-grace-period). A client's SYN comes again after a second, so a connect of a second or longer is one whose SYN was not answered. What nearlb does then, and
how often a backend that is left out is tried again: [services.md](services.md), [differences.md](differences.md).
A dash: kube-proxy leaves nobody out. ` + "`make failover`" + ` makes this page again, in about ten minutes.
`

// write writes the page and its pictures.
func write(o options, played []outcome) error {
	kernel, cpu := rig.Machine()
	text := fmt.Sprintf(page, int(patience.Seconds()), time.Now().UTC().Format(time.DateOnly), o.version, kernel, cpu, table(played), int(notReadyAfter.Seconds()))
	if err := os.WriteFile(filepath.Join(o.out, "failover.md"), []byte(text), 0o644); err != nil {
		return err
	}
	for name, c := range themes {
		if err := os.WriteFile(filepath.Join(o.out, "failover-"+name+".svg"), []byte(chart(played, c)), 0o644); err != nil {
			return err
		}
	}
	return nil
}
