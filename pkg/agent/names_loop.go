// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"net/netip"

	"github.com/nearlb/nearlb/pkg/lb"
)

// nameTables is what the loop keeps in step with the tables of packets: *names.
type nameTables interface {
	Narrow(next *lb.NamedService)
	Set(*lb.NamedService)
	Doubt(lb.ServiceName)
	Remove(lb.ServiceName)
	Synced()
	service() lb.ServiceName      // of the cluster's DNS
	responders() []netip.AddrPort // that answer in its place, on this node
	alsoAt() []netip.Addr         // where its clients ask beside its ClusterIPs
	learn(d *lb.Decision)         // what its packets are decided by
}

// serviceNames are the names of one Service while it is published. A name is in force when the tables are: of endpoints that go the
// names go first, of those that come they come last.
type serviceNames struct {
	*loop
	name   lb.ServiceName
	before *lb.NamedService // read before what the tables are made of; nil: there is none, or it is in doubt
	exists bool
}

// namesOf is to be called before the source is asked for the Service's Input.
func (l *loop) namesOf(name lb.ServiceName) *serviceNames {
	s := &serviceNames{loop: l, name: name}
	if l.named != nil {
		s.before = l.named.Named(name)
		s.exists = s.before != nil
	}
	return s
}

// narrow comes after Input was read and before the tables are written. What changed meanwhile will be told of again: until then the
// names are those that were there before and after. A Service without ClusterIP has no packets here.
func (s *serviceNames) narrow() {
	if s.named == nil {
		return
	}
	after := s.named.Named(s.name)
	switch {
	case s.before == nil, after == nil:
		s.before, s.exists = nil, false
		s.names.Remove(s.name)
	case after.OfPackets():
		s.before = after.Within(s.before) // nil: it is in doubt until then
		s.names.Narrow(cmp.Or(s.before, after))
	default:
		s.before = after
		s.names.Narrow(after)
	}
}

// settle puts the names in force that the tables have now. If these could not be written, what is new waits; a Service that has no
// names yet is one that exists all the same.
func (s *serviceNames) settle(err error) {
	switch {
	case s.named == nil, !s.exists:
	case err == nil && s.before != nil:
		s.names.Set(s.before)
	default:
		s.names.Doubt(s.name)
	}
}

// ask adds to what decides about the cluster's DNS who answers in its place, and where: no other Service gets these addresses.
func (s *serviceNames) ask(in *lb.Input) {
	switch {
	case s.named == nil:
	case s.name == s.names.service():
		in.Responders, in.AlsoAt = s.names.responders(), s.names.alsoAt()
	default:
		in.Reserved = s.names.alsoAt()
	}
}

func (s *serviceNames) learn(d *lb.Decision) {
	if s.named != nil && s.name == s.names.service() {
		s.names.learn(d)
	}
}

// nameTables is nil where nobody answers names.
func (d *daemon) nameTables() nameTables {
	if d.names == nil {
		return nil
	}
	return d.names
}

// lookAtNames has the responder look where it is to answer.
func (d *daemon) lookAtNames() {
	if d.names != nil {
		d.names.look()
	}
}
