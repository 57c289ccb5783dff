// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// namedScripted is a source whose Services have names.
type namedScripted struct {
	*scripted
	headless *atomic.Bool // nil: none is
}

func (s namedScripted) Named(name lb.ServiceName) *lb.NamedService {
	in, found := s.Input(name)
	if !found {
		return nil
	}
	var endpoints []lb.NamedEndpoint
	for _, e := range in.Endpoints {
		endpoints = append(endpoints, lb.NamedEndpoint{Addresses: []netip.Addr{e.Address.Addr()}, Is: lb.IsReady})
	}
	return &lb.NamedService{Name: name, Headless: s.headless != nil && s.headless.Load(), Slices: []*lb.NamedSlice{lb.NewNamedSlice("s", nil, endpoints...)}}
}

func (s namedScripted) NamedServices() []lb.ServiceName { return s.Services() }
func (s namedScripted) NamesKnown() bool                { return true }

// notedNames notes, between what the tables are told, what names are told.
type notedNames struct {
	*witnessed
	dns  lb.ServiceName
	last *lb.Decision
	also []netip.Addr
}

func (n *notedNames) Doubt(s lb.ServiceName)     { n.note("doubt " + s.Name) }
func (n *notedNames) Narrow(s *lb.NamedService)  { n.note("narrow " + s.Name.Name) }
func (n *notedNames) Set(s *lb.NamedService)     { n.note("set " + s.Name.Name) }
func (n *notedNames) Remove(name lb.ServiceName) { n.note("unname " + name.Name) }
func (n *notedNames) Synced()                    { n.note("synced") }
func (n *notedNames) service() lb.ServiceName    { return n.dns }
func (n *notedNames) alsoAt() []netip.Addr       { return n.also }
func (n *notedNames) learn(d *lb.Decision)       { n.last = d }
func (n *notedNames) responders() []netip.AddrPort {
	return []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:10053")}
}

func TestNamesComeAfterPacketsAndGoBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, tables, headless := newScripted(), newWitnessed(), new(atomic.Bool)
		names := &notedNames{witnessed: tables, dns: serviceName(2)}
		l := newLoop(namedScripted{source, headless}, tables, metrics.New("test"), newDiary(), slog.New(slog.DiscardHandler),
			loopOptions{auditEvery: time.Hour, reclaimEvery: time.Hour, debounce: testDebounce, checks: asked{}, names: names})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.run(ctx) }()
		want := func(calls ...string) {
			t.Helper()
			synctest.Wait()
			if got := tables.taken(); !slices.Equal(got, calls) {
				t.Errorf("got %q, want %q", got, calls)
			}
		}
		name := source.set(1, 2)
		l.Synced()
		want("narrow s1", "apply s1", "set s1", "synced", "configure", "audit")
		tables.setFailure(name, errors.New("full"))
		source.set(1, 1)
		l.ServiceChanged(name)
		want("narrow s1", "apply s1", "doubt s1") // what is new has no name yet
		tables.setFailure(name, nil)
		time.Sleep(retryFirst)
		want("narrow s1", "apply s1", "set s1")
		source.remove(name)
		l.ServiceChanged(name)
		want("unname s1", "remove s1")

		in := input(2, 1)
		in.Service.Ports[0].Port = 53
		source.put(in)
		l.ServiceChanged(names.dns)
		want("narrow s2", "apply s2", "set s2")
		if tiers := names.last.Frontends[0].Internal.Tiers; len(tiers) != 2 || tiers[0].Backends[0].Address != names.responders()[0] {
			t.Errorf("the cluster's DNS: %+v, want the responder first", tiers)
		}
		headless.Store(true)
		l.ServiceChanged(names.dns)
		want("narrow s2", "apply s2", "set s2") // its ClusterIP goes with the tables that have it
		source.remove(names.dns)
		l.ServiceChanged(names.dns)
		want("unname s2", "remove s2")
		if len(names.last.Frontends) > 0 {
			t.Errorf("the cluster's DNS is gone: %+v", names.last)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// The further address at which names are asked for is the cluster's DNS's alone, and the host's own as soon as a device has it.
func TestAFurtherAddressForNamesIsTheClustersDNSs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, tables := newScripted(), newWitnessed()
		names := &notedNames{witnessed: tables, dns: serviceName(2), also: addresses("169.254.20.10")}
		l := newLoop(namedScripted{source, nil}, tables, metrics.New("test"), newDiary(), slog.New(slog.DiscardHandler),
			loopOptions{auditEvery: time.Hour, reclaimEvery: time.Hour, debounce: testDebounce, checks: asked{}, names: names})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.run(ctx) }()
		for number := range 2 {
			in := input(number+1, 1)
			in.Service.Ports[0].Port = 53
			if number == 0 { // before the cluster's DNS in any order
				in.Service.ExternalIPs = names.also
			}
			source.put(in)
		}
		l.Synced()
		synctest.Wait()
		at := func() (all []lb.Frontend) {
			for _, f := range names.last.Frontends {
				if f.Key.Address.Addr() == names.also[0] {
					all = append(all, f)
				}
			}
			return all
		}
		if got := at(); len(got) != 1 || got[0].OnHost {
			t.Errorf("got %+v", got)
		}
		if text := dump(t, tables); strings.Count(text, "169.254.20.10:53") != 1 {
			t.Errorf("another Service has the address:\n%s", text)
		}
		l.networkChanged(attach.Network{Local: names.also})
		time.Sleep(testDebounce)
		synctest.Wait()
		if got := at(); len(got) != 1 || !got[0].OnHost {
			t.Errorf("a device has the address: %+v", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
