// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
)

// benchPaths is how long each part of the measurement takes, and benchRounds how often each is measured (make bench-paths).
const (
	benchPaths  = "NEARLB_BENCH_PATHS"
	benchRounds = "NEARLB_BENCH_ROUNDS"
)

// path is where a measured client's backend is, and how it gets there.
type path struct {
	name string
	rush *service // answers rushes
	bulk *service // takes and gives much
	got  [2]measured
}

// measured is what one path did over one family.
type measured struct{ rate, up, down []float64 }

// benchStage has a path to the first node, and one for each way to the second one: backends of their own.
func benchStage(t *testing.T) (*stage, []*path) {
	s := newStage(t, options{agent: []string{"--carry-port", "6091"}, direct: true})
	if err := s.outside.Sysctl("ipv4/tcp_tw_reuse=1", "ipv4/ip_local_port_range=1024 65535"); err != nil {
		t.Fatal(err)
	}
	all := []*path{s.path("here", s.near, "")}
	for _, way := range lb.OffNodes() {
		all = append(all, s.path(string(way), s.server(1, "far-"+string(way)), way))
	}
	for i := range s.agents {
		s.awaitServing(i)
	}
	for _, p := range all {
		s.awaitPath(p)
	}
	return s, all
}

func (s *stage) path(name string, server *lab.Pod, way lb.OffNode) *path {
	answerRush(s.t, server, 12)
	p := &path{name: name, rush: s.next(), bulk: s.next()}
	for _, of := range []*service{p.rush, p.bulk} {
		if way != "" {
			of.Annotations = map[string]string{"nearlb.io/off-node": string(way)}
		}
	}
	p.rush.publishAt(rushPort, ready(server)...)
	p.bulk.publish(ready(server)...)
	return p
}

// awaitPath waits until the path answers, with the client's own address unless that is not its way.
func (s *stage) awaitPath(p *path) {
	s.t.Helper()
	for _, six := range []bool{false, true} {
		to := s.by(p.rush, nodePort).address(six)
		s.await(p.name+" answers a rush", func() bool { return s.outside.Do(func() error { return rushOnce(to, false) }) == nil })
		s.await(p.name+" is the way", func() bool {
			conn := s.by(p.bulk, nodePort).dial(s.outside, way{"tcp", six})
			defer conn.Close()
			answer, err := conn.Who()
			return err == nil && (answer.Client == conn.Local()) == (p.name != string(lb.OffNodeSNAT))
		})
	}
}

// What a node carries with the backend on this node and on another, by each way: connections that are opened and closed as fast as possible,
// and bulk either way. Medians of rounds, which are interleaved, so that what else the machine does meets all alike. It fails on errors, never
// on time.
func TestBenchPaths(t *testing.T) {
	lasts, err := time.ParseDuration(os.Getenv(benchPaths))
	if err != nil {
		t.Skip(benchPaths + " says how long each round lasts")
	}
	rounds, err := strconv.Atoi(cmp.Or(os.Getenv(benchRounds), "3"))
	if err != nil {
		t.Fatal(err)
	}
	s, all := benchStage(t)
	for _, serverCloses := range []bool{false, true} {
		closes := map[bool]string{false: "client", true: "server"}[serverCloses]
		for family, six := range []bool{false, true} {
			for range rounds {
				for _, p := range all {
					s.measureRush(p, family, rush{serverCloses: serverCloses, lasts: lasts, at: 8}, six)
				}
			}
		}
		writeRates(all, closes)
	}
	for family, six := range []bool{false, true} {
		for range rounds {
			for _, p := range all {
				s.measureBulk(p, family, six)
			}
		}
	}
	writeBulk(all)
}

func (s *stage) measureRush(p *path, family int, r rush, six bool) {
	s.t.Helper()
	got := r.run(s.outside.Namespace, s.by(p.rush, nodePort).address(six))
	if got.errors > 0 {
		s.t.Errorf("%s: %s: %v", p.name, got, got.first)
	}
	p.got[family].rate = append(p.got[family].rate, got.rate())
}

func (s *stage) measureBulk(p *path, family int, six bool) {
	s.t.Helper()
	const length = 256 * megabyte
	conn := s.by(p.bulk, nodePort).dial(s.outside, way{"tcp", six})
	defer conn.Close()
	m := &p.got[family]
	for rate, transfer := range map[*[]float64]func(uint64, int64) error{&m.up: conn.Put, &m.down: conn.Get} {
		began := time.Now()
		if err := transfer(1, length); err != nil {
			s.t.Fatalf("%s: %v", p.name, err)
		}
		*rate = append(*rate, length/megabyte/time.Since(began).Seconds())
	}
}

// writeRates prints connections a second, and forgets them.
func writeRates(all []*path, closes string) {
	fmt.Printf("\n| connections a second, the %s closes first | IPv4 | of here | IPv6 | of here |\n|---|---:|---:|---:|---:|\n", closes)
	var here [2]float64
	for _, p := range all {
		four, six := median(p.got[0].rate), median(p.got[1].rate)
		if p == all[0] {
			here = [2]float64{four, six}
		}
		fmt.Printf("| %s | %.0f | %.2f | %.0f | %.2f |\n", p.name, four, four/here[0], six, six/here[1])
		p.got[0].rate, p.got[1].rate = nil, nil
	}
}

func writeBulk(all []*path) {
	fmt.Print("\n| bulk, MiB/s | IPv4 to the server | to the client | IPv6 to the server | to the client |\n|---|---:|---:|---:|---:|\n")
	for _, p := range all {
		fmt.Printf("| %s | %.0f | %.0f | %.0f | %.0f |\n", p.name, median(p.got[0].up), median(p.got[0].down), median(p.got[1].up), median(p.got[1].down))
	}
}
