// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// awaitFrontends polls until the tables of every node with an agent have all frontends of the Service. They are put in force one after the other:
// one that answers says nothing of the next.
func (s *service) awaitFrontends() {
	s.t.Helper()
	for i := range s.agents {
		n := s.nodes[i]
		s.await(fmt.Sprintf("%s has every frontend of %s", n.Name, s.Name), func() bool {
			missing := s.frontendsOn(n)
			s.read(i, func(r *maps.Reader) error { return s.strike(missing, r) })
			return len(missing) == 0
		})
	}
}

// frontendsOn are the frontends that the Service has on a node, and its ClusterIPs themselves. Its external addresses count if
// it has NodePorts as well.
func (s *service) frontendsOn(n *lab.Node) map[string]bool {
	all := map[string]bool{}
	for _, a := range s.ClusterIPs {
		all[a.String()] = true
	}
	for _, p := range s.Ports {
		addresses := s.ClusterIPs
		if p.NodePort != 0 {
			addresses = append(s.external(), addresses...)
			for _, six := range []bool{false, true} {
				all[frontendName(n.Address(six), p.NodePort, p.Protocol)] = true
			}
		}
		for _, a := range addresses {
			all[frontendName(a, p.Port, p.Protocol)] = true
		}
	}
	return all
}

// external are the addresses that nodes answer for others than themselves.
func (s *service) external() []netip.Addr {
	all := append([]netip.Addr(nil), s.ExternalIPs...)
	for _, b := range s.LoadBalancers {
		if b.IP.IsValid() && !b.Proxy {
			all = append(all, b.IP)
		}
	}
	return all
}

// strike takes away what the tables have.
func (s *service) strike(missing map[string]bool, r *maps.Reader) error {
	for row, err := range r.FrontendsOf(s.owns) {
		if err != nil {
			return err
		}
		delete(missing, frontendName(row.Address, row.FrontendPort, row.Protocol))
	}
	for row, err := range r.Addresses() {
		if err != nil {
			return err
		}
		if row.Service == "default/"+s.Name {
			delete(missing, row.Address.String())
		}
	}
	return nil
}

// owns tells whether a service port is the Service's.
func (s *service) owns(p lb.PortName) bool { return p.Service.String() == "default/"+s.Name }

func frontendName(a netip.Addr, port uint16, protocol string) string {
	return fmt.Sprintf("%s %s", netip.AddrPortFrom(a, port), protocol)
}
