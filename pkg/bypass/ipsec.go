// SPDX-License-Identifier: Apache-2.0

package bypass

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Policies are the host's policies of IPsec for what it sends, and for what it is sent. The zero value has none.
type Policies struct{ out, in []netlink.XfrmPolicy }

// ReadPolicies reads them. A kernel without IPsec has none.
func ReadPolicies() (p Policies, err error) {
	all, err := listPolicies()
	for _, policy := range all {
		switch policy.Dir {
		case netlink.XFRM_DIR_OUT:
			p.out = append(p.out, policy)
		case netlink.XFRM_DIR_IN:
			p.in = append(p.in, policy)
		}
	}
	return p, err
}

func listPolicies() ([]netlink.XfrmPolicy, error) {
	policies, err := netlink.XfrmPolicyList(unix.AF_UNSPEC)
	if err != nil && !unsupported(err) {
		return nil, fmt.Errorf("read IPsec policies: %w", err)
	}
	return policies, nil
}

func lookAtIPsec() (found []string, err error) {
	policies, err := listPolicies()
	if err != nil {
		return nil, err
	}
	if len(policies) > 0 {
		found = append(found, "IPsec policies (ip xfrm policy)")
	}
	refuses, err := refusesPlain()
	if err != nil {
		return nil, fmt.Errorf("read what IPsec does without a policy: %w", err)
	}
	if refuses {
		found = append(found, "IPsec for what no policy is for (ip xfrm policy getdefault)")
	}
	return found, nil
}

// linux/xfrm.h, since 5.15: struct xfrm_userpolicy_default is what becomes of packets that no policy is for, as they come in, are forwarded, go out.
const (
	getDefaults  = 0x28 // XFRM_MSG_GETDEFAULT
	defaultBlock = 1    // XFRM_USERPOLICY_BLOCK
)

// refusesPlain says whether the stack drops what no policy is for.
func refusesPlain() (bool, error) {
	request := nl.NewNetlinkRequest(getDefaults, 0)
	request.AddRawData(make([]byte, 3))
	answers, err := request.Execute(unix.NETLINK_XFRM, 0)
	if unsupported(err) {
		return false, nil
	}
	return err == nil && len(answers) > 0 && len(answers[0]) >= 3 && slices.Contains(answers[0][:3], defaultBlock), err
}

// Concern says whether a policy protects or forbids datagrams of UDP from one address, of this host, to another, or back, or some of them: what
// programs send by a redirect passes it by, and what they take comes before it. A policy for a port, a mark or a device counts for all; that of an
// interface of its own (xfrm, by if_id) does not: it sees to whatever goes through that.
func (p Policies) Concern(from, to netip.Addr) bool {
	return anyConcerns(p.out, from, to) || anyConcerns(p.in, to, from)
}

func anyConcerns(policies []netlink.XfrmPolicy, from, to netip.Addr) bool {
	return slices.ContainsFunc(policies, func(policy netlink.XfrmPolicy) bool {
		protects := policy.Action == netlink.XFRM_POLICY_BLOCK || len(policy.Tmpls) > 0
		datagrams := policy.Proto == 0 || policy.Proto == unix.IPPROTO_UDP
		return protects && datagrams && policy.Ifid == 0 && within(policy.Src, from) && within(policy.Dst, to)
	})
}

// within: a policy without a network is for all addresses.
func within(n *net.IPNet, a netip.Addr) bool { return n == nil || n.Contains(a.AsSlice()) }

// Ways are those of datagrams that programs send to other hosts.
type Ways struct {
	Number int      // of hosts that there is a way to
	Heeded int      // those of them that policies of IPsec are for: nothing is carried to these
	Open   []string // devices by which the rest leave as whoever is on the way can read and write them: they are none of WireGuard
}

// WaysTo gives those to some hosts.
func WaysTo(hosts []netip.Addr) (w Ways, err error) {
	policies, err := ReadPolicies()
	if err != nil {
		return w, err
	}
	for _, to := range hosts {
		routes, err := netlink.RouteGet(to.AsSlice())
		if err != nil || len(routes) == 0 {
			continue // nothing gets there
		}
		w.Number++
		if from, ok := netip.AddrFromSlice(routes[0].Src); ok && policies.Concern(from.Unmap(), to) {
			w.Heeded++
			continue
		}
		link, err := netlink.LinkByIndex(routes[0].LinkIndex)
		if err != nil {
			return w, fmt.Errorf("read the device to %s: %w", to, err)
		}
		if name := link.Attrs().Name; link.Type() != "wireguard" && !slices.Contains(w.Open, name) {
			w.Open = append(w.Open, name)
		}
	}
	return w, nil
}
