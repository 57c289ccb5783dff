// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/tests/privileged"
)

// G2: what the kernel samples of refused packets is listed with names, whoever was refused, at every door.
func TestDropsAreListedWithTheirNames(t *testing.T) {
	s := onStage(t, options{})
	known, refusing, dropping := s.next(), s.next(), s.next()
	known.publish(ready(s.pod)...) // so that the client's name is known
	s.serve(dropping, ready(s.far)...)
	dropping.ExternalLocal = true
	dropping.publish(ready(s.far)...)
	refusing.publish(notReady(s.near))
	s.mayDrop("drop_no_local_endpoints")
	want := map[*service][]journal.Drop{}
	for _, w := range ways() {
		port := strings.TrimRight(w.network, "46")
		listed := func(of *service, client host, kind frontend, drop journal.Drop) {
			t.Helper()
			drop.Port = port
			want[of] = append(want[of], s.listed(of, client, kind, w, drop))
		}
		listed(refusing, s.pod, clusterIP, journal.Drop{Verdict: "reject", Reason: "no-endpoints", ClientPod: "default/pod", Hook: "from_pod"})
		listed(refusing, s.outside, nodePort, journal.Drop{Verdict: "reject", Reason: "no-endpoints", Hook: "from_net"})
		listed(refusing, s.here, clusterIP, journal.Drop{Verdict: "reject", Reason: "no-endpoints", Hook: "sock"})
		listed(dropping, s.outside, nodePort, journal.Drop{Verdict: "drop", Reason: "no-local-endpoints", Hook: "from_net"})
	}
	for of, drops := range want {
		said := s.drops("--service", of.Name)
		for _, drop := range drops {
			if !isAmong(said, drop) {
				t.Errorf("nearlb drops does not list %+v: %+v", drop, said)
			}
		}
	}
	checkWhy(s, refusing)
	checkWhyNamesOthersPrograms(s, refusing)
	if said := s.run("drops", "--pin-path", s.here.PinPath(), "--lock-dir", s.LockDir(), "--verdict", "no-local-endpoints"); !strings.Contains(said, "drop: no-local-endpoints") ||
		strings.Contains(said, "reject: ") {
		t.Errorf("drops by reason:\n%s", said)
	}
}

// Each kind of client is told why it is refused, by the door that it is behind and with what was dropped of it.
func checkWhy(s *stage, of *service) {
	s.t.Helper()
	for client, want := range map[string]string{
		"pod":                             "pod ",
		s.pod.Address(false).String():     "pod ",
		s.here.Address(false).String():    "host ",
		s.outside.Address(false).String(): "network ",
	} {
		said := s.run("why", "--pin-path", s.here.PinPath(), "--lock-dir", s.LockDir(), client, of.Name)
		if !strings.Contains(said, "\ncause   endpoints-not-ready: ") || !strings.Contains(said, "\n"+want) || !strings.Contains(said, "\nalso    dropped-before: ") {
			s.t.Errorf("why %s:\n%s", client, said)
		}
	}
}

// A program of somebody else that sees a pod's packets before nearlb's is named to who asks about the pod.
func checkWhyNamesOthersPrograms(s *stage, of *service) {
	s.t.Helper()
	if !privileged.TCX(s.t) {
		s.t.Log("not tried: clsact filters are not listed")
		return
	}
	next := asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()} // TCX_NEXT
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "foreign_policy", Type: ebpf.SchedCLS, Instructions: next, License: "MIT"})
	if err != nil {
		s.t.Fatal(err)
	}
	defer program.Close()
	var attached link.Link
	err = s.here.Do(func() error {
		device, err := netlink.LinkByName(s.pod.Device)
		if err != nil {
			return err
		}
		attached, err = link.AttachTCX(link.TCXOptions{Interface: device.Attrs().Index, Program: program, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	defer attached.Close()
	if said := s.run("why", "--pin-path", s.here.PinPath(), "--lock-dir", s.LockDir(), s.pod.Address(false).String(), of.Name); !strings.Contains(said, "\nbefore  foreign_policy (tcx program ") {
		s.t.Errorf("why with another program before:\n%s", said)
	}
}

// listed asks in vain until the agent keeps the packet as it should be listed.
func (s *stage) listed(of *service, client host, kind frontend, w way, want journal.Drop) journal.Drop {
	s.t.Helper()
	asked := s.by(of, kind)
	want.Node, want.Service, want.Frontend, want.Protocol = "n1", "default/"+of.Name, asked.address(w.six).String(), strings.ToUpper(want.Port)
	if want.Client = client.Address(w.six).String(); want.Hook == "sock" {
		want.Client = "" // one of the node's own
	}
	s.await(fmt.Sprintf("%s over %s of %s is listed", client, w, of.Name), func() bool {
		_, _ = asked.inVain(client, w)
		kept, _ := s.keptDrops()
		return isAmong(kept, want)
	})
	return want
}

// isAmong tells whether one of these is that packet, but for its time, which is of late, and the client's port.
func isAmong(all []journal.Drop, want journal.Drop) bool {
	return slices.ContainsFunc(all, func(got journal.Drop) bool {
		if at, err := netip.ParseAddrPort(got.Client); err == nil {
			got.Client = at.Addr().String()
		} else if got.Hook == "sock" { // a socket that connects has no port yet
			got.Client = ""
		}
		recent := time.Since(got.Time) < time.Hour && time.Since(got.Time) > -time.Minute
		got.Time = time.Time{}
		return recent && got == want
	})
}

// drops are what `nearlb drops` lists on the first node.
func (s *stage) drops(flags ...string) (rows []journal.Drop) {
	s.t.Helper()
	said := s.run(append([]string{"drops", "--pin-path", s.here.PinPath(), "--lock-dir", s.LockDir(), "-o", "jsonl"}, flags...)...)
	for line := range strings.Lines(said) {
		var row journal.Drop
		if !strings.HasPrefix(line, "{") {
			continue // of standard error: how many were not sampled
		}
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			s.t.Fatalf("%v:\n%s", err, said)
		}
		rows = append(rows, row)
	}
	return rows
}

// What is listed and what is said not to be sampled are together all packets that were refused.
func TestDropsThatAreNotListedAreCounted(t *testing.T) {
	s := newStage(t, options{alone: true})
	of := s.next()
	s.serve(of, ready(s.near)...)
	of.publish(notReady(s.near))
	w := way{"udp", false}
	s.await("the Service refuses", func() bool { return refused(s.by(of, clusterIP).try(s.pod, w)) })
	const enough = 300             // more than the processors may tell of in the time that this takes
	const onTheirWay = enough / 10 // events that are not read yet are fewer
	unsampled := func() uint64 {
		_, unsampled := s.keptDrops()
		return unsampled
	}
	for n := 0; unsampled() < onTheirWay; n++ {
		for range enough {
			_, _ = s.by(of, clusterIP).ask(s.pod, w)
		}
		if n > 100 {
			t.Fatal("all of 30,000 packets were told of one by one")
		}
	}
	s.await("every packet is counted once", func() bool {
		refused := uint64(0)
		for verdict, packets := range s.verdicts(0) {
			if strings.HasPrefix(verdict, "reject_no") || strings.HasPrefix(verdict, "drop_") {
				refused += packets
			}
		}
		kept, unsampled := s.keptDrops()
		return uint64(len(kept))+unsampled == refused
	})
	if kept, _ := s.keptDrops(); len(s.drops()) != len(kept) {
		t.Errorf("%d packets are listed, want %d", len(s.drops()), len(kept))
	}
	if said := s.run("drops", "--pin-path", s.here.PinPath(), "--lock-dir", s.LockDir()); !strings.Contains(said, " were counted, and not told of one by one\n") {
		t.Errorf("drops say nothing of those:\n%s", said)
	}
}

// keptDrops are what the first node's agent keeps, and how many packets were counted and not kept.
func (s *stage) keptDrops() (rows []journal.Drop, unsampled uint64) {
	s.t.Helper()
	err := agent.ReadDrops(s.t.Context(), s.LockDir(), s.here.PinPath(), false, func(news agent.News) error {
		if news.Unsampled != nil {
			unsampled = news.Unsampled.Packets
		}
		if news.Line == nil {
			return nil
		}
		var row journal.Drop
		err := json.Unmarshal(*news.Line, &row)
		rows = append(rows, row)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return rows, unsampled
}

// Who follows is told of each packet as it comes, and of the agent's end.
func TestDropsAreFollowedUntilTheAgentEnds(t *testing.T) {
	s := onStage(t, options{})
	of := s.next()
	s.serve(of, ready(s.near)...)
	of.publish(notReady(s.near))
	w := way{"tcp", true}
	seen, ended := make(chan string, 1000), make(chan error, 1)
	go func() {
		ended <- agent.ReadDrops(context.WithoutCancel(t.Context()), s.LockDir(), s.here.PinPath(), true, func(news agent.News) error {
			if news.Line != nil {
				seen <- string(*news.Line)
			}
			return nil
		})
	}()
	for range 2 { // what was there before, and what comes
		s.await("the refusal is told", func() bool {
			_, _ = s.by(of, clusterIP).try(s.pod, w)
			select {
			case line := <-seen:
				return strings.Contains(line, of.Name)
			default:
				return false
			}
		})
	}
	if err := s.agents[0].Stop(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), agent.ErrAgentEnded.Error()) {
		t.Errorf("the one who follows is told %v", err)
	}
}
