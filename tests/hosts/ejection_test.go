// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/maps"
)

// state is what the first node's tables say of a pod's backend of one family, and until when it is left out.
func (s *stage) state(of *service, p *lab.Pod, six bool) (state, until string) {
	s.t.Helper()
	var rows []maps.BackendRow
	s.read(0, func(r *maps.Reader) error {
		for row, err := range r.BackendsOf(of.owns) {
			if err != nil {
				return err
			}
			rows = append(rows, row)
		}
		return nil
	})
	return s.stateIn(rows, of, p, six)
}

// says is what `nearlb backends` says of it.
func (s *stage) says(of *service, p *lab.Pod, six bool) (state, until string) {
	s.t.Helper()
	said := s.run("backends", "--pin-path", s.here.PinPath(), "-o", "json")
	var rows []maps.BackendRow
	if err := json.Unmarshal([]byte(said), &rows); err != nil {
		s.t.Fatalf("%v: %s", err, said)
	}
	return s.stateIn(rows, of, p, six)
}

func (s *stage) stateIn(rows []maps.BackendRow, of *service, p *lab.Pod, six bool) (state, until string) {
	s.t.Helper()
	for _, row := range rows {
		if row.Address != p.Address(six) || !strings.HasSuffix(row.Service, "/"+of.Name) || row.Protocol != "TCP" {
			continue
		}
		out := row.EjectedUntil != ""
		if out != (row.EjectedSince != "") || out != (row.EjectedBecause != "") || row.State != "active" {
			s.t.Errorf("backend %+v", row)
		}
		if out {
			return "ejected", row.EjectedUntil
		}
		return row.State, ""
	}
	s.t.Fatalf("no backend %s of %s in %+v", p, of.Name, rows)
	return "", ""
}

// crowd opens a hundred connections of each client at once, and says how many SYNs the deaf one lost of them, and how many it answered.
func (s *stage) crowd(of *service, deaf *lab.Pod, six bool, clients ...host) (lost uint64, answered int64) {
	s.t.Helper()
	before := synsLost(s.t, deaf)
	var answers atomic.Int64
	var group errgroup.Group
	for _, client := range clients {
		for range 100 {
			group.Go(func() error {
				conn, err := client.Dial(context.Background(), "tcp", s.by(of, loadBalancer).address(six), lab.DialOptions{LocalPort: s.port()})
				if err != nil {
					return err
				}
				defer conn.Close()
				answer, err := conn.Who()
				if answer.Server == deaf.Name {
					answers.Add(1)
				}
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		s.t.Errorf("six %v, %s is deaf: %v", six, deaf, err)
	}
	return synsLost(s.t, deaf) - before, answers.Load()
}

// awaitPrograms waits until the programs at these pods translate: the agent attaches them when the tables are there, and loads them before,
// which may take as long as a client waits.
func (s *stage) awaitPrograms(pods ...*lab.Pod) {
	s.t.Helper()
	of := s.next()
	of.publish(ready(s.near)...) // of the other node nobody is to answer later
	for _, p := range pods {
		of.awaitServer(p, s.near.Name)
	}
}

// stays tells whether a backend was left out until then and is still: when its time is over, one connection may try it.
func (s *stage) stays(of *service, p *lab.Pod, six bool, until string) bool {
	s.t.Helper()
	end, err := time.Parse(time.RFC3339, until)
	_, still := s.state(of, p, six)
	return err == nil && still == until && time.Now().Before(end)
}

// One of ten servers loses SYNs. Who comes there first sends again; then nobody goes there, also no client off the node and no socket of the
// node itself, until it is readmitted. All others serve.
func TestAServerThatLosesSYNsIsLeftOut(t *testing.T) {
	s := onStage(t, options{})
	servers := []*lab.Pod{s.near, s.far}
	for n := range 8 {
		servers = append(servers, s.server(n%2, "web-"+string(rune('a'+n))))
	}
	other := s.cluster.pod(0, "other")
	s.awaitPrograms(s.pod, other)
	for _, dead := range []*lab.Pod{s.near, s.far} {
		of := s.next()
		of.publish(ready(servers...)...)
		of.awaitFrontends()
		deaf(t, dead)
		for _, six := range []bool{false, true} {
			if state, _ := s.state(of, dead, six); state != "active" {
				t.Fatalf("%s is %s at first", dead, state)
			}
			s.leavesOut(of, dead, other, six)
			says, line := "", "\nleft out  "+netip.AddrPortFrom(dead.Address(six), targetPort).String()
			if lab.Await(time.Minute, func() bool {
				says = s.run("status", "--pin-path", s.here.PinPath(), "--lock-dir", s.LockDir())
				return strings.Contains(says, line)
			}) != nil {
				t.Errorf("status does not name it:\n%s", says)
			}
		}
		if err := dead.Netfilter("delete chain inet deaf input"); err != nil { // what it lost stays
			t.Fatal(err)
		}
		for _, six := range []bool{false, true} {
			at := netip.AddrPortFrom(dead.Address(six), targetPort)
			s.run("backends", "readmit", at.String(), "--pin-path", s.here.PinPath(), "--lock-dir", s.LockDir())
			if state, _ := s.state(of, dead, six); state != "active" {
				t.Errorf("%s is %s at last", dead, state)
			}
			if _, answered := s.crowd(of, dead, six, s.pod, s.outside); answered == 0 {
				t.Errorf("six %v: %s hears again, and no connection goes there", six, dead)
			}
		}
	}
}

// Clients that wait for less than a second have no SYN come again: by those that wait at once a server is found that does not answer.
func TestAServerIsLeftOutBeforeASYNComesAgain(t *testing.T) {
	s := onStage(t, options{})
	other := s.cluster.pod(0, "other")
	s.awaitPrograms(s.pod, other)
	of := s.next()
	of.publish(ready(s.near, s.far)...)
	of.awaitFrontends()
	deaf(t, s.far)
	for _, six := range []bool{false, true} {
		if lab.Await(time.Minute, func() bool {
			s.hurried(of, six, s.pod, other)
			state, _ := s.state(of, s.far, six)
			return state == "ejected"
		}) != nil {
			t.Errorf("six %v: %s gets connections", six, s.far)
		}
	}
}

// hurried opens connections of each client side by side, which give up after a fifth of a second.
func (s *stage) hurried(of *service, six bool, clients ...host) {
	var group errgroup.Group
	for _, client := range clients {
		for range 10 {
			group.Go(func() error {
				ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
				defer cancel()
				conn, err := client.Dial(ctx, "tcp", s.by(of, loadBalancer).address(six), lab.DialOptions{LocalPort: s.port()})
				if err == nil {
					_ = conn.Close()
				}
				return nil
			})
		}
	}
	_ = group.Wait()
}

// leavesOut has connections be opened until the dead server is left out, and then some more, none of which has to wait. Where its time is
// over meanwhile, which lets one try it, this begins anew.
func (s *stage) leavesOut(of *service, dead, other *lab.Pod, six bool) {
	s.t.Helper()
	for {
		for state := ""; state != "ejected"; state, _ = s.state(of, dead, six) {
			s.crowd(of, dead, six, s.pod, other)
		}
		_, until := s.state(of, dead, six)
		lost, _ := s.crowd(of, dead, six, s.pod, other, s.outside, s.here)
		state, said := s.says(of, dead, six)
		if !s.stays(of, dead, six, until) {
			continue
		}
		if state != "ejected" || said != until {
			s.t.Errorf("nearlb backends says that %s is %s until %s, the tables say until %s", dead, state, said, until)
		}
		if lost > 0 {
			s.t.Errorf("six %v, %s is left out: it lost %d SYNs", six, dead, lost)
		}
		return
	}
}

// F4: a node has lost its power. Connections to two Services find that out; nobody goes to the third one's server there, and it is left out as well.
func TestANodeThatIsSilentIsLeftOutForServicesThatNobodyAskedYet(t *testing.T) {
	s := newStage(t, options{})
	other := s.cluster.pod(0, "other")
	s.awaitPrograms(s.pod, other)
	var all []*service
	var dead []*lab.Pod
	for _, name := range []string{"web-a", "web-b", "web-c"} {
		server := s.server(1, name)
		of := s.next()
		of.publish(ready(s.near, server)...)
		of.awaitFrontends()
		all, dead = append(all, of), append(dead, server)
	}
	for _, server := range dead {
		deaf(t, server)
	}
	for i := range 2 {
		for state := ""; state != "ejected"; state, _ = s.state(all[i], dead[i], false) {
			s.crowd(all[i], dead[i], false, s.pod, other)
		}
	}
	for _, six := range []bool{false, true} {
		for stays := false; !stays; {
			if lab.Await(time.Minute, func() bool { state, _ := s.state(all[2], dead[2], six); return state == "ejected" }) != nil {
				t.Fatalf("six %v: %s gets connections", six, dead[2])
			}
			_, until := s.state(all[2], dead[2], six)
			lost, _ := s.crowd(all[2], dead[2], six, s.pod, other)
			if stays = s.stays(all[2], dead[2], six, until); stays && lost > 0 {
				t.Errorf("six %v: it lost %d SYNs", six, lost)
			}
		}
		if state, _ := s.state(all[2], s.near, six); state != "active" {
			t.Errorf("six %v: %s is %s", six, s.near, state)
		}
	}
}
