// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// answers are what a proxy would do, one line of text for each subject, so that two proxies can be compared and people
// can read the difference.
type answers map[string]string

// The kinds of frontends. Within one Service, the kind that comes first has an address that several kinds claim: so do the maps of the
// nftables proxier, but for external and load balancer addresses, which lead to the same chain; the firewall of source ranges holds for both.
const (
	clusterIP = iota
	loadBalancer
	externalIP
	nodePort
)

type frontend struct {
	service, port, protocol string
	kind                    int
	ip                      netip.Addr
	number                  int
	internal, external      string // what side said
	affinity                int    // seconds
	ranges                  []netip.Prefix
}

func newAnswers() answers { return answers{} }

// add notes a frontend.
func (a answers) add(f frontend) {
	subject := fmt.Sprintf("%s %v/%s", f.service, netip.AddrPortFrom(f.ip, uint16(f.number)), f.protocol)
	slices.SortFunc(f.ranges, netip.Prefix.Compare)
	line := fmt.Sprintf("%d port %q; from here %s; from elsewhere %s; affinity %d; ranges %v",
		f.kind, f.port, f.internal, f.external, f.affinity, slices.Compact(slices.Clone(f.ranges)))
	if old, ok := a[subject]; !ok || line < old {
		a[subject] = line
	}
}

// reachable notes the endpoints of a service port that any client may get here.
func (a answers) reachable(port string, v4 bool, endpoints []string) {
	if len(endpoints) > 0 {
		a[fmt.Sprintf("%s reachable, IPv4 %v", port, v4)] = list(endpoints)
	}
}

// health notes what a health check node port says.
func (a answers) health(service string, v4 bool, port uint16, count int) {
	a[fmt.Sprintf("%s health, IPv4 %v", service, v4)] = fmt.Sprintf("port %d: %d", port, count)
}

// side says what clients of one side get.
func side(hasAny bool, endpoints []string) string {
	switch {
	case !hasAny:
		return "reject"
	case len(endpoints) == 0:
		return "drop"
	}
	return "balance " + list(endpoints)
}

func list(endpoints []string) string {
	slices.Sort(endpoints)
	return strings.Join(endpoints, " ")
}
