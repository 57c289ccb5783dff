// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/lb"
)

// What a resolver reads of resolv.conf at the most (the kubelet's limits, since Kubernetes 1.28).
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchText  = 2048 // characters of the whole line's names
	maxDomain      = 253
	maxHostname    = 64 // bytes of the kernel's node name (HOST_NAME_MAX)
)

// The policies of spec.dnsPolicy.
const (
	policyClusterFirst = "ClusterFirst"
	policyHostNet      = "ClusterFirstWithHostNet"
	policyDefault      = "Default"
	policyNone         = "None"
)

// ResolvConf is what a resolv.conf says.
type ResolvConf struct {
	Nameservers []string `json:"nameservers"`
	Searches    []string `json:"searches"`
	Options     []string `json:"options"` // NAME or NAME:VALUE
}

// String is the file's text.
func (c ResolvConf) String() string {
	var out strings.Builder
	if len(c.Searches) > 0 {
		fmt.Fprintf(&out, "search %s\n", strings.Join(c.Searches, " "))
	}
	for _, s := range c.Nameservers {
		fmt.Fprintf(&out, "nameserver %s\n", s)
	}
	if len(c.Options) > 0 {
		fmt.Fprintf(&out, "options %s\n", strings.Join(c.Options, " "))
	}
	return out.String()
}

// ParseResolvConf reads a resolv.conf as the kubelet reads the node's: without `domain` lines and the search domain `.` (parseResolvConf).
// A name server without an address is an error: such a kubelet starts no Pod.
func ParseResolvConf(text string) (c ResolvConf, err error) {
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || strings.ContainsAny(words[0][:1], "#;"):
		case words[0] == "nameserver" && len(words) == 1:
			return c, fmt.Errorf("line %d: nameserver without an address: the kubelet starts no Pod", i+1)
		case words[0] == "nameserver":
			c.Nameservers = append(c.Nameservers, words[1])
		case words[0] == "search":
			c.Searches = nil // the last line counts
			for _, s := range words[1:] {
				if s != "." {
					c.Searches = append(c.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case words[0] == "options":
			c.Options = mergeOptions(c.Options, words[1:])
		}
	}
	return c, nil
}

// Kubelet is what the kubelet of a node knows of names.
type Kubelet struct {
	Zone       string       // clusterDomain, without the last dot
	ClusterDNS []netip.Addr // clusterDNS; none: all Pods get the node's
	Node       ResolvConf   // resolvConf
	Nobody     bool         // resolvConf is "": Pods that get the node's look nothing up
}

// PodNames are what a Pod gets from the kubelet, and what is wrong with it.
type PodNames struct {
	ResolvConf
	Hostname string   `json:"hostname"` // in /etc/hostname and by uname; "": the node's
	Problems []string `json:"problems"`
}

// NamesOf is what the kubelet makes of a Pod's wishes (pkg/kubelet/network/dns, kuberuntime and kubelet_pods.go of Kubernetes).
func (k Kubelet) NamesOf(pod lb.NamedPod) (out PodNames) {
	w := lb.PodWishes{}
	if pod.Wishes != nil {
		w = *pod.Wishes
	}
	out.Problems = []string{}
	problem := func(format string, args ...any) { out.Problems = append(out.Problems, fmt.Sprintf(format, args...)) }
	switch {
	case w.Policy == policyNone:
		if len(w.Nameservers) == 0 {
			problem("spec.dnsConfig.nameservers: dnsPolicy None wants one or more")
		}
	case k.fromCluster(w, problem):
		zone := strings.TrimSuffix(k.Zone, ".")
		for _, a := range k.ClusterDNS {
			out.Nameservers = append(out.Nameservers, a.String())
		}
		own := []string{pod.Name.Namespace + ".svc." + zone, "svc." + zone, zone}
		out.Searches = distinct(append(own, k.Node.Searches...))
		out.Options = []string{"ndots:5"}
	case k.Nobody:
		out.ResolvConf = ResolvConf{Nameservers: []string{"127.0.0.1"}, Searches: []string{"."}}
	default:
		out.ResolvConf = k.Node
	}
	refused(w, problem)
	out.Nameservers = distinct(append(slices.Clone(out.Nameservers), w.Nameservers...))
	out.Searches = distinct(append(slices.Clone(out.Searches), w.Searches...))
	out.Options = mergeOptions(out.Options, w.Options)
	for _, list := range []*[]string{&out.Nameservers, &out.Searches, &out.Options} {
		*list = append([]string{}, *list...) // in JSON an empty list, not null
	}
	out.cut(problem)
	if !w.HostNetwork {
		out.Hostname = k.hostname(pod.Name, w, problem)
	}
	return out
}

// refused tells what of a Pod's dnsConfig no API server takes (ValidatePod of Kubernetes), or no resolver reads.
func refused(w lb.PodWishes, problem func(string, ...any)) {
	for _, s := range w.Nameservers {
		if _, err := netip.ParseAddr(s); err != nil {
			problem("spec.dnsConfig.nameservers %q: want an IP address; the API server refuses the Pod", s)
		}
	}
	for _, s := range w.Searches {
		if _, ok := wire.IsDomainName(s); s == "" || !ok || strings.ContainsAny(s, " \t\\") {
			problem("spec.dnsConfig.searches %q: want a domain name; the API server refuses the Pod", s)
		}
	}
	for _, o := range w.Options {
		name, value, _ := strings.Cut(o, ":")
		if name == "" {
			problem("spec.dnsConfig.options %q: want a name; the API server refuses the Pod", o)
		}
		if n, err := strconv.Atoi(value); name == "ndots" && (err != nil || n < 0) {
			problem("spec.dnsConfig.options %q: want a number; glibc takes 0, musl 1", o)
		}
	}
}

// fromCluster tells whether a Pod asks the cluster's DNS.
func (k Kubelet) fromCluster(w lb.PodWishes, problem func(string, ...any)) bool {
	switch w.Policy {
	case policyDefault:
		return false
	case policyHostNet:
	case "", policyClusterFirst:
		if w.HostNetwork {
			problem("spec.dnsPolicy: with hostNetwork ClusterFirst is Default: the node's name servers, which know no Services; ClusterFirstWithHostNet asks the cluster's")
			return false
		}
	default:
		problem("spec.dnsPolicy %q: want ClusterFirst, ClusterFirstWithHostNet, Default or None; the kubelet asks the cluster's DNS", w.Policy)
	}
	if len(k.ClusterDNS) == 0 {
		problem("the kubelet has no clusterDNS: the Pod gets the node's name servers")
	}
	return len(k.ClusterDNS) > 0
}

// cut leaves what resolvers read.
func (out *PodNames) cut(problem func(string, ...any)) {
	if n := len(out.Nameservers); n > maxNameservers {
		problem("%d name servers: the kubelet writes the first %d", n, maxNameservers)
		out.Nameservers = out.Nameservers[:maxNameservers]
	}
	before := len(out.Searches)
	out.Searches = out.Searches[:min(before, maxSearches)] // before the long ones go, which count
	out.Searches = slices.DeleteFunc(slices.Clone(out.Searches), func(s string) bool { return len(s) > maxDomain })
	for len(strings.Join(out.Searches, " ")) > maxSearchText {
		out.Searches = out.Searches[:len(out.Searches)-1]
	}
	if left := len(out.Searches); left < before {
		problem("%d search domains: the kubelet writes %d (at most %d, of %d characters together)", before, left, maxSearches, maxSearchText)
	}
}

// hostname is what the Pod is called by itself.
func (k Kubelet) hostname(name lb.PodName, w lb.PodWishes, problem func(string, ...any)) string {
	host := w.Hostname
	if host == "" {
		host = strings.TrimRight(name.Name[:min(len(name.Name), maxHostname-1)], "-.")
	}
	if !w.HostnameAsFQDN || w.Subdomain == "" {
		return host
	}
	full := strings.Join([]string{host, w.Subdomain, name.Namespace, "svc", strings.TrimSuffix(k.Zone, ".")}, ".")
	if len(full) > maxHostname {
		problem("spec.setHostnameAsFQDN: %s has %d characters, the kernel takes %d: the Pod does not start", full, len(full), maxHostname)
	}
	return full
}

// mergeOptions lets the later ones of a name count.
func mergeOptions(first, second []string) []string {
	name := func(o string) string { n, _, _ := strings.Cut(o, ":"); return n }
	out := slices.Clone(first)
	for _, o := range second {
		if at := slices.IndexFunc(out, func(old string) bool { return name(old) == name(o) }); at >= 0 {
			out[at] = o
		} else {
			out = append(out, o)
		}
	}
	return out
}

func distinct(all []string) (out []string) {
	for _, s := range all {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// WalkOf are the names that a Pod asks for one after the other, on a node whose kubelet adds nothing to the cluster's search list.
func WalkOf(pod lb.NamedPod, zone, name string) []string {
	k := Kubelet{Zone: zone, ClusterDNS: []netip.Addr{netip.IPv4Unspecified()}} // any: who is asked makes no difference
	return k.NamesOf(pod).Walk(name)
}

// Walk are the names that a resolver asks for one after the other, until one has records (resolv.conf(5), as glibc).
func (c ResolvConf) Walk(name string) (all []string) {
	if strings.HasSuffix(name, ".") {
		return []string{name}
	}
	dots := 1
	for _, o := range c.Options {
		_, _ = fmt.Sscanf(o, "ndots:%d", &dots)
	}
	for _, s := range c.Searches {
		all = append(all, wire.Fqdn(name+"."+strings.TrimPrefix(s, ".")))
	}
	if strings.Count(name, ".") >= min(dots, 15) {
		return append([]string{wire.Fqdn(name)}, all...)
	}
	return append(all, wire.Fqdn(name))
}
