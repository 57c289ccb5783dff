// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/rig"
	"golang.org/x/sync/errgroup"
)

// endure says how long clients connect by each way (make endure).
const endure = "NEARLB_ENDURE"

// E3: clients off the node that connect as fast as they can, by each way, in both families, whoever closes first, are refused none while agents of
// both nodes are killed and restarted and the way changes and changes back. In the second half nothing happens: memory and open files of the
// agents stay what they are.
func TestFullRateForMinutesByEachWay(t *testing.T) {
	lasts, err := time.ParseDuration(os.Getenv(endure))
	if err != nil {
		t.Skip(endure + " says how long each way is used")
	}
	for _, way := range lb.OffNodes() {
		t.Run(string(way), func(t *testing.T) {
			s := newBusyStage(t, options{agent: []string{"--carry-port", "6091"}, direct: true})
			p := s.path(string(way), s.far, way)
			p.awaitPath()
			end := sync.OnceFunc(p.rushEverywhere(lasts))
			t.Cleanup(end) // before what it needs goes
			for changed := time.Now(); time.Since(changed) < lasts/2; {
				p.disturb()
			}
			before := s.used()
			end()
			for i, after := range s.used() {
				t.Logf("%s: %s, at the end %s", s.nodes[i].Name, before[i], after)
				if after.memory > before[i].memory+before[i].memory/4+(4<<20) || after.files > before[i].files+2 {
					t.Errorf("%s: memory or open files grew", s.nodes[i].Name)
				}
			}
		})
	}
}

// rushEverywhere connects in both families, with either side closing first, all at once. What it returns waits for the end and judges.
func (p *path) rushEverywhere(lasts time.Duration) (end func()) {
	var all errgroup.Group
	services := map[bool]netip.AddrPort{}
	for _, six := range []bool{false, true} {
		services[six] = p.by(p.rush, nodePort).address(six)
	}
	for _, six := range []bool{false, true} {
		for _, serverCloses := range []bool{false, true} {
			all.Go(func() error {
				got := rush{serverCloses: serverCloses, lasts: lasts, at: 3}.run(p.outside.Namespace, services[six])
				p.t.Logf("%s, IPv6 %v, the server closes first %v: %s", p.name, six, serverCloses, got)
				if got.errors > 0 || got.connections == 0 {
					return fmt.Errorf("%s: %s: %w", p.name, got, got.first)
				}
				return nil
			})
		}
	}
	return func() {
		p.t.Helper()
		if err := all.Wait(); err != nil {
			p.t.Error(err)
		}
	}
}

// disturb kills the agent of each node, restarts it, and has the Service go each other way and back.
func (p *path) disturb() {
	p.t.Helper()
	for i := range p.agents {
		for _, end := range []func(*lab.Process) error{(*lab.Process).Kill, (*lab.Process).Stop} {
			if err := end(p.agents[i]); err != nil {
				p.t.Fatal(err)
			}
			p.agents[i] = p.startAgent(i)
			p.awaitServing(i)
		}
	}
	own := p.rush.Annotations
	for _, way := range append(lb.OffNodes(), lb.OffNode(p.name)) {
		p.rush.Annotations = map[string]string{"nearlb.io/off-node": string(way)}
		p.rush.publishAt(rushPort, ready(p.server)...)
		for i := range p.agents {
			p.awaitServing(i)
		}
	}
	p.rush.Annotations = own
}

// used is what an agent has of the machine.
type used struct {
	memory int64 // bytes of its own
	files  int   // open
}

func (u used) String() string {
	return fmt.Sprintf("%.1f MiB, %d files open", float64(u.memory)/(1<<20), u.files)
}

// used is what each agent has.
func (s *stage) used() (out []used) {
	s.t.Helper()
	for _, agent := range s.agents {
		memory, err := rig.OwnMemory(agent.PID())
		if err != nil {
			s.t.Fatal(err)
		}
		files, err := rig.Descriptors(agent.PID())
		if err != nil {
			s.t.Fatal(err)
		}
		out = append(out, used{memory, files})
	}
	return out
}
