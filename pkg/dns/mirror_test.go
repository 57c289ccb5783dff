// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
)

// paper is a table with room for so many names.
type paper struct {
	room  int
	zones lb.NameZones
	names map[paperKey]lb.NameAnswer
}

type paperKey struct {
	parent uint32
	label  string
}

var errFull = errors.New("no room")

func (p *paper) Configure(z lb.NameZones) error { p.zones = z; return nil }
func (p *paper) Clear() error                   { p.names = map[paperKey]lb.NameAnswer{}; return nil }
func (p *paper) Room() int                      { return p.room }

func (p *paper) Put(parent uint32, label string, n lb.NameAnswer) (bool, error) {
	key := paperKey{parent, label}
	if _, there := p.names[key]; !there && len(p.names) >= p.room {
		return false, errFull
	}
	before := len(p.names)
	p.names[key] = n
	return len(p.names) > before, nil
}

func (p *paper) Remove(parent uint32, label string) (bool, error) {
	before := len(p.names)
	delete(p.names, paperKey{parent, label})
	return len(p.names) < before, nil
}

// tree is what can be found by a table, without the numbers.
func (p *paper) tree(parent uint32, below string) map[string]lb.NameAnswer {
	all := map[string]lb.NameAnswer{}
	for key, n := range p.names {
		if key.parent == parent {
			name, number := key.label+"."+below, n.Number
			n.Number = 0
			all[name] = n
			maps.Copy(all, p.tree(number, name))
		}
	}
	return all
}

// Services that change while all are written are written as they are at the end.
func TestWhatChangesWhileATableIsWrittenIsInIt(t *testing.T) {
	view := dns.NewView(dns.ViewOptions{})
	state := func(i, version int) *lb.NamedService {
		s := named(fmt.Sprintf("ns-%d", i%7), fmt.Sprintf("s-%d", i))
		s.Headless = true
		for e := range 1 + (i+version)%4 {
			s.Slices = append(s.Slices, slice(fmt.Sprint(e), tcp("http", 80), ready(fmt.Sprintf("10.%d.%d.%d", version, i, e+1), "")))
		}
		return s
	}
	const services, versions = 200, 5
	change := func(version int) {
		for i := range services {
			switch next := state(i, version); (i + version) % 5 {
			case 0:
				view.Remove(next.Name)
			case 1:
				view.Narrow(next)
				view.Set(next)
			case 2:
				view.Doubt(next.Name)
			default:
				view.Set(next)
			}
		}
	}
	change(0)
	view.Synced()
	r := dns.NewResponder(view, dns.Options{Zones: []string{"cluster.local"}, Pods: dns.PodsInsecure})
	meanwhile, after := &paper{room: 10_000}, &paper{room: 10_000}
	var group errgroup.Group
	group.Go(func() error {
		for version := range versions {
			change(version)
		}
		return nil
	})
	fail := func(err error) { t.Error(err) }
	for range versions {
		view.Mirror(r, meanwhile, fail)
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	told := view.Mirrored()
	view.Mirror(r, after, fail)
	if !meanwhile.zones.On || told != view.Mirrored() {
		t.Errorf("on: %v; %+v, want %+v", meanwhile.zones.On, told, view.Mirrored())
	}
	if diff := cmp.Diff(after.tree(0, ""), meanwhile.tree(0, ""), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("what was written while it changed (-after +meanwhile)\n%s", diff)
	}
}

// slow is a table that is cleared when it is told to.
type slow struct {
	*paper
	view  *dns.View
	asked chan int
}

func (s *slow) Clear() error {
	go func() { s.asked <- s.view.Mirrored().Names }()
	select {
	case names := <-s.asked:
		if names != 0 || s.zones.On {
			return errors.New("names are answered while they are cleared")
		}
	case <-time.After(10 * time.Second): // this long when it fails alone
		return errors.New("the view cannot be read while they are cleared")
	}
	return s.paper.Clear()
}

// Questions do not wait until an old table is cleared.
func TestAViewIsReadWhileATableIsCleared(t *testing.T) {
	view := dns.NewView(dns.ViewOptions{})
	view.Synced()
	r := dns.NewResponder(view, dns.Options{Zones: []string{"cluster.local"}})
	table := &slow{&paper{room: 100}, view, make(chan int, 1)}
	for range 2 {
		view.Mirror(r, table, func(err error) { t.Error(err) })
		if !table.zones.On {
			t.Error("it does not answer")
		}
	}
}

// What the table does not have is not denied by it.
func TestATableOfNamesThatIsNotWholeAnswersNothing(t *testing.T) {
	view := dns.NewView(dns.ViewOptions{})
	r := dns.NewResponder(view, dns.Options{Zones: []string{"cluster.local"}, Pods: dns.PodsInsecure})
	table, failed := &paper{room: 20}, []error{}
	view.Mirror(r, table, func(err error) { failed = append(failed, err) })
	if table.zones.On || view.Mirrored().Whole {
		t.Error("it answers before all names are read")
	}
	view.Synced()
	many := named("prod", "many")
	many.Headless = true
	for i := range 30 {
		many.Slices = append(many.Slices, slice(fmt.Sprint(i), tcp("http", 80), ready(fmt.Sprintf("10.244.1.%d", i+1), "")))
	}
	view.Set(many)
	if !table.zones.On || len(failed) > 0 || len(table.names) > 20 {
		t.Errorf("endpoints without room, which the responder is asked for: on %v, %v, %d names", table.zones.On, failed, len(table.names))
	}
	told := func(wrong func(dns.Mirrored) bool) {
		t.Helper()
		if m := view.Mirrored(); m.Names != len(table.names) || wrong(m) {
			t.Errorf("of %d names it is told: %+v", len(table.names), m)
		}
	}
	told(func(m dns.Mirrored) bool { return m.NoRoom != 20 || m.Failure != nil || !m.Whole })
	view.Remove(many.Name)
	told(func(m dns.Mirrored) bool { return m.NoRoom != 0 })
	view.Set(many)
	told(func(m dns.Mirrored) bool { return m.NoRoom != 20 })
	for i := range 20 {
		s := named("prod", fmt.Sprintf("s%d", i))
		s.ClusterIPs = addrs("10.96.0.10")
		view.Set(s)
	}
	if table.zones.On || len(failed) != 1 || !errors.Is(failed[0], errFull) {
		t.Errorf("Services without room: on %v, %v", table.zones.On, failed)
	}
	told(func(m dns.Mirrored) bool { return !errors.Is(m.Failure, errFull) || m.Whole })
	larger := &paper{room: 100}
	view.Mirror(r, larger, func(err error) { t.Error(err) })
	if !larger.zones.On {
		t.Error("a table with room does not answer")
	}
	table = larger
	told(func(m dns.Mirrored) bool { return m.NoRoom != 0 || m.Failure != nil })
}
