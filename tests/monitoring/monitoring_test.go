// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

// seen are the scrapes of one world: of its good days, of its bad ones, and after an agent's end.
type seen struct{ good, bad, down []scrape }

// Everything that manifests/monitoring says of metrics is held against agents at work.
func TestMonitoringIsAboutWhatAgentsTell(t *testing.T) {
	w := newWorld(t)
	s := seen{good: w.goodDays()}
	s.bad = w.badDays()
	w.must(w.agents[2].Kill())
	s.down = []scrape{w.scrape()}
	t.Run("alerts", func(t *testing.T) { testAlerts(t, s) })
	t.Run("dashboard", func(t *testing.T) { testDashboard(t, s) })
	t.Run("table of metrics", func(t *testing.T) { testTable(t, s) })
	t.Run("logs", func(t *testing.T) { testLogs(t, w) })
}

var (
	web    = service{number: 10, name: "web"}
	zoned  = service{number: 11, name: "zoned", annotations: "nearlb.io/traffic-distribution: PreferSameZone"}
	opened = service{number: 12, name: "opened", spec: "type: NodePort", nodePort: 30080}
	lonely = service{number: 15, name: "lonely", annotations: "nearlb.io/traffic-distribution: PreferSameZone"} // and no endpoint in the first zone
	moving = service{number: 14, name: "moving"}
	lent   = service{number: 13, name: "lent", spec: "type: LoadBalancer; externalTrafficPolicy: Local; healthCheckNodePort: 31000"}
)

// goodDays are scrapes of a world in which nothing is wrong.
func (w *world) goodDays() (scrapes []scrape) {
	w.t.Helper()
	for _, s := range []*service{&web, &zoned, &opened, &lent} {
		s.endpoints = []string{at(w.near)}
	}
	web.endpoints, zoned.endpoints = []string{at(w.near), at(w.far)}, []string{at(w.near), at(w.far)}
	for _, s := range []service{web, zoned, opened, lent} {
		w.publish(s)
		w.served(s)
	}
	w.answerNames()
	lonely.endpoints = []string{at(w.far)}
	w.publish(lonely)
	w.publish(moving)
	scrapes = append(scrapes, w.scrape())
	for range 2 {
		w.move()
		w.usual()
		scrapes = append(scrapes, w.scrape())
	}
	w.await("the change of endpoints is measured", func() bool {
		scrapes[2] = w.scrape()
		return scrapes[2].sum("nearlb_network_programming_duration_seconds_count") > 0
	})
	return scrapes
}

// move changes the endpoints of a Service that nobody asks: the change has a trigger.
func (w *world) move() {
	w.t.Helper()
	if moving.endpoints = append(moving.endpoints, at(w.near)); len(moving.endpoints) > 1 {
		moving.endpoints = nil
	}
	w.publish(moving)
}

// usual is traffic of every kind that works.
func (w *world) usual() {
	w.t.Helper()
	for i := range 20 {
		for _, s := range []service{web, zoned} {
			for _, network := range []string{"tcp", "udp"} {
				w.must(retry(func() error { return ask(w.client, network, s.address()) }))
			}
		}
		w.must(retry(func() error { return ask(w.outside, "tcp", w.nodePort(opened)) }))
		conn, err := w.client.Dial(context.Background(), "tcp", web.address(), lab.DialOptions{})
		w.must(err)
		w.must(conn.Get(uint64(i), 64<<10))
		w.must(conn.Close())
	}
	w.lookUpAll()
	for _, n := range w.nodes {
		_, err := get(n, healthPort, "/healthz")
		w.must(err)
	}
}

// retry forgives what a loaded machine is too late for.
func retry(try func() error) (err error) {
	_ = lab.Await(patience, func() bool { err = try(); return err == nil })
	return err
}

var (
	refusing = service{number: 20, name: "refusing", port: 9}
	silent   = service{number: 21, name: "silent"}
	empty    = service{number: 22, name: "empty"}
	confined = service{number: 23, name: "confined", spec: "internalTrafficPolicy: Local"}
	crowded  = service{number: 24, name: "crowded", spec: "type: NodePort", nodePort: 30081}
	wrong    = service{number: 25, name: "wrong", annotations: "nearlb.io/topology-keys: '*,rack'"}
	taken    = service{number: 26, name: "taken", spec: "type: LoadBalancer; externalTrafficPolicy: Local; healthCheckNodePort: 10256"} // the agent's own
	filling  = service{number: 27, name: "filling"}
	toomany  = service{number: 28, name: "toomany"}
)

// badDays are scrapes while everything goes wrong that can be made to.
func (w *world) badDays() (scrapes []scrape) {
	w.t.Helper()
	w.node("b", "--cgroup", "/proc/nothing", "--size-backends", "32")
	w.must(w.others.Kill())
	w.lookUpAll() // the series of what fails begin
	far := []string{at(w.far)}
	for _, s := range []*service{&refusing, &confined, &crowded, &wrong, &taken} {
		s.endpoints = far
		w.publish(*s)
	}
	silent.endpoints = []string{endpoint("10.244.2.250", w.nodes[1])}
	filling.endpoints = []string{endpoint("10.244.2.240", w.nodes[1]), endpoint("10.244.2.241", w.nodes[1]), endpoint("10.244.2.242", w.nodes[1])}
	for i := range 16 {
		toomany.endpoints = append(toomany.endpoints, endpoint("10.244.2."+string(rune('1'))+string(rune('0'+i/10))+string(rune('0'+i%10)), w.nodes[1]))
	}
	for _, s := range []service{silent, empty, filling} {
		w.publish(s)
	}
	w.await("the small table is nearly full", func() bool { return w.scrape().sum("nearlb_table_entries", "node", "n3", "table", "backends") >= 30 })
	w.publish(toomany)
	var s scrape
	w.await("the agents tell of what is wrong", func() bool {
		_ = ask(w.client, "tcp", refusing.address()) // its series begin
		s = w.scrape()
		return s.sum("nearlb_service_failed_connections_total", "service", refusing.name) > 0 && s.sum("nearlb_services_failing", "node", "n3") > 0 && s.sum("nearlb_programs_detached") > 0 && s.sum("nearlb_object_problems") > 0 &&
			s.sum("nearlb_health_check_node_ports", "state", "failed") > 0 && s.sum("nearlb_services_without_local_endpoints", "traffic_policy", "internal") > 0
	})
	scrapes = append(scrapes, s)
	for range 2 {
		before := scrapes[len(scrapes)-1]
		w.bad()
		w.usual()
		w.move()
		scrapes = append(scrapes, w.scrapeOnce(before, [][]string{
			{"nearlb_service_failed_connections_total", "cause", "refused"}, {"nearlb_service_failed_connections_total", "cause", "unanswered"},
			{"nearlb_backend_failed_connections_total", "cause", "refused"}, {"nearlb_service_refused_packets_total", "verdict", "drop"},
			{"nearlb_drift_total"}, {"nearlb_packets_total", "reason", "ports_full"}, {"nearlb_publication_errors_total"},
			{"nearlb_network_programming_duration_seconds_count"}, {"nearlb_dns_forward_duration_seconds_count", "result", "silent"},
		}))
	}
	return scrapes
}

// scrapeOnce waits until each of these metrics, with pairs of label and value, is more than before.
func (w *world) scrapeOnce(before scrape, metrics [][]string) (s scrape) {
	w.t.Helper()
	var missing [][]string
	defer func() {
		if len(missing) > 0 {
			w.t.Log("not counted: ", missing)
		}
	}()
	w.await("what went wrong is counted", func() bool {
		s = w.scrape()
		missing = slices.DeleteFunc(slices.Clone(metrics), func(what []string) bool { return s.sum(what[0], what[1:]...) > before.sum(what[0], what[1:]...) })
		return len(missing) == 0
	})
	return s
}

// bad is traffic that cannot succeed.
func (w *world) bad() {
	w.t.Helper()
	w.damage(1)
	fails := func(from dialer, network string, s service) {
		w.t.Helper()
		if err := ask(from, network, s.address()); err == nil {
			w.t.Errorf("Service %s answers", s.name)
		}
	}
	for range 3 {
		fails(w.client, "tcp", silent)
		fails(w.client, "tcp", empty)
		fails(w.client, "udp", empty)
		fails(w.client, "tcp", confined)
		fails(w.client, "tcp", service{number: 200, name: "of nobody"})
	}
	for range 100 {
		fails(w.client, "tcp", refusing)
	}
	for range 8 { // of which four have a port
		conn, err := w.outside.Dial(context.Background(), "tcp", w.nodePort(crowded), lab.DialOptions{Patience: 300 * time.Millisecond})
		if err == nil {
			w.t.Cleanup(func() { _ = conn.Close() })
		}
	}
}
