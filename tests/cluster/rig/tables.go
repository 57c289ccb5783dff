// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// Read opens the tables of a node's agent, as the CLI does. Before the agent has loaded its programs there are none.
func (c *Cluster) Read(n *Node, f func(*maps.Reader) error) error {
	err := c.Mounted(func() error {
		tables, err := bpf.OpenMaps(n.PinPath(), true)
		if err != nil {
			return err
		}
		defer tables.Close()
		r, err := maps.NewReader(tables)
		if err != nil {
			return err
		}
		return f(r)
	})
	if err != nil && !errors.Is(err, bpf.ErrNoAgent) {
		return fmt.Errorf("read tables of %s: %w", n.Name, err)
	}
	return nil
}

// Dump is the canonical text of a node's tables.
func (c *Cluster) Dump(t testing.TB, n *Node) string {
	t.Helper()
	var text strings.Builder
	if err := c.Read(n, func(r *maps.Reader) error { return r.Dump(&text) }); err != nil {
		t.Error(err)
	}
	return text.String()
}

// Verdicts are the packets of a node by verdict name, over all hooks.
func (c *Cluster) Verdicts(n *Node) map[string]uint64 {
	out := map[string]uint64{}
	_ = c.Read(n, func(r *maps.Reader) error {
		for row, err := range r.Verdicts() {
			if err != nil {
				return err
			}
			out[row.Verdict+"_"+strings.ReplaceAll(row.Reason, "-", "_")] += row.Packets
		}
		return nil
	})
	return out
}

// awaitKnown waits until the tables of every node have the Service's addresses, unless it is another proxy's.
func (s *Service) awaitKnown() {
	s.cluster.T.Helper()
	o := s.Get()
	if o.Labels["service.kubernetes.io/service-proxy-name"] != "" {
		return
	}
	addresses := o.Spec.ClusterIPs
	for _, n := range s.cluster.Nodes() {
		if n.Agent == nil {
			continue
		}
		s.cluster.Await(fmt.Sprintf("%s knows Service %s", n.Name, s.Name), func() bool {
			missing := slices.Clone(addresses)
			err := s.frontends(n, func(row maps.FrontendRow) {
				missing = slices.DeleteFunc(missing, func(a string) bool { return a == row.Address.String() })
			})
			return err == nil && len(missing) == 0
		})
	}
}

// AwaitChoice waits until the tables of every node let its own clients choose these pods, and no others, for each address and port
// of the Service.
func (s *Service) AwaitChoice(want ...*Pod) {
	s.cluster.T.Helper()
	for _, n := range s.cluster.Nodes() {
		if n.Agent != nil {
			s.AwaitChoiceOf(n, want...)
		}
	}
}

// AwaitChoiceOf is AwaitChoice for one node.
func (s *Service) AwaitChoiceOf(n *Node, want ...*Pod) {
	s.cluster.T.Helper()
	var got string
	err := lab.Await(Patience, func() bool {
		var err error
		got, err = s.misfit(n, want)
		return err == nil && got == ""
	})
	if err != nil {
		s.cluster.T.Fatalf("%s of %s: %s, want %v: %v", s.Name, n.Name, got, want, err)
	}
}

// Rows is what the tables of every node have for the Service's addresses.
func (s *Service) Rows() string {
	s.cluster.T.Helper()
	var text strings.Builder
	for _, n := range s.cluster.Nodes() {
		s.cluster.must(s.frontends(n, func(row maps.FrontendRow) {
			row.Connections, row.Rejected, row.Dropped, row.Open = 0, 0, 0, 0
			line, err := json.Marshal(row)
			s.cluster.must(err)
			fmt.Fprintf(&text, "%s %s\n", n.Name, line)
		}))
	}
	return text.String()
}

// frontends are the Service's in the tables of a node.
func (s *Service) frontends(n *Node, each func(maps.FrontendRow)) error {
	return s.cluster.Read(n, func(r *maps.Reader) error {
		for row, err := range r.FrontendsOf(s.owns) {
			if err != nil {
				return err
			}
			each(row)
		}
		return nil
	})
}

// owns tells whether a service port is the Service's.
func (s *Service) owns(p lb.PortName) bool {
	return p.Service == lb.ServiceName{Namespace: s.cluster.Namespace, Name: s.Name}
}

// AwaitLeft waits until no node sends a packet of UDP to the pod any more, of whatever age its flow is: it is known everywhere
// that it does not serve. Until then a client whose port was used before may be sent to a pod that terminates.
func (s *Service) AwaitLeft(p *Pod) {
	s.cluster.T.Helper()
	for _, n := range s.cluster.Nodes() {
		if n.Agent == nil {
			continue
		}
		s.cluster.Await(fmt.Sprintf("%s knows that %s does not serve", n.Name, p.Object), func() bool {
			serves, err := s.serves(n, p)
			return err == nil && !serves
		})
	}
}

func (s *Service) serves(n *Node, p *Pod) (serves bool, err error) {
	err = s.cluster.Read(n, func(r *maps.Reader) error {
		for row, err := range r.BackendsOf(s.owns) {
			if err != nil {
				return err
			}
			ours := row.Address == p.V4 || row.Address == p.V6
			serves = serves || ours && (row.State == "active" || row.State == "draining")
		}
		return nil
	})
	return serves, err
}

// Nodes are those of the cluster.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*Node(nil), c.nodes...)
}

// misfit is a frontend of the Service that has other backends; "" when all are as they should be.
func (s *Service) misfit(n *Node, want []*Pod) (found string, err error) {
	rows := 0
	err = s.frontends(n, func(row maps.FrontendRow) {
		rows++
		if got := chosen(row); !slices.Equal(got, addresses(want, row.Address.Is6())) {
			found = fmt.Sprintf("%v: %v", row.Address, got)
		}
	})
	if rows == 0 {
		found = "no frontend"
	}
	return found, err
}

func chosen(row maps.FrontendRow) (out []netip.Addr) {
	for _, tier := range row.Internal.Tiers {
		for _, b := range tier.Backends {
			out = append(out, b.Address)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func addresses(pods []*Pod, six bool) (out []netip.Addr) {
	for _, p := range pods {
		out = append(out, p.Address(six))
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}
