// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lab"
	tables "github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/watch"
)

// Each table of a fixed size that the agent fills, on three nodes whose agents have room for different things: fillers leave
// next to nothing, and then one Service for each table needs more. It is told by name with the table and its limit, by the status
// and the metrics; what it was before goes on answering, others change as they like; and it gets what it asked for once there
// is space, without being asked for again.
func TestATableThatIsFullHurtsOnlyWhoNeedsMoreOfIt(t *testing.T) {
	c := newCluster(t)
	f := newFilling(c)
	load := f.load()
	load.more(100)

	f.write(true, false)
	f.settle(true, make([]map[string]string, 3))
	f.write(true, true)
	f.settle(true, f.failing)
	for i, a := range f.agents {
		a.checkTold(f.failing[i])
	}
	c.publish("other.yaml", web(1, f.d))
	for _, client := range f.clients {
		c.awaitAnswers(client, web(1).address, f.d)
	}
	load.more(500)

	f.write(false, true)
	f.settle(false, make([]map[string]string, 3))
	for _, a := range f.agents {
		a.checkTold(nil)
		if s := a.serving(); s.Drift != 0 {
			t.Errorf("%s: audits found %d differences", a.node.Name, s.Drift)
		}
	}
	f.checkGrown()
	load.more(100)
	load.end(t)
}

// victims are Services that need more of one table each.
var victims = []string{"slots", "backends", "ranges", "names", "frontends", "services"}

// filling is three nodes with the victims, their fillers, and a Service that has nothing to do with it.
type filling struct {
	*cluster
	nodes   []*lab.Node
	clients []*lab.Pod
	agents  []*running
	failing []map[string]string // on each node, while there is no space: Service -> error
	a, d    *lab.Pod
}

func newFilling(c *cluster) *filling {
	c.t.Helper()
	f := &filling{cluster: c}
	for i := range 3 {
		f.nodes = append(f.nodes, c.node())
		f.clients = append(f.clients, c.pod(f.nodes[i], fmt.Sprintf("client-%d", i+1)))
	}
	f.a, f.d = c.servers(f.nodes[0], "a")[0], c.servers(f.nodes[1], "d")[0]
	c.publish("other.yaml", web(1, f.a, f.d))
	f.write(true, false)
	sizes := f.measure()
	f.write(false, false)
	for i, n := range f.nodes {
		f.agents = append(f.agents, c.agent(n, append(sizes[i], "--metrics-address=127.0.0.1:0")...))
	}
	for _, a := range f.agents {
		a.serving()
	}
	return f
}

// measure has the fillers in tables without limits, and gives each node just a little more room than they take, in the tables
// that are its own, as flags. What then fails there is noted.
func (f *filling) measure() (flags [][]string) {
	f.t.Helper()
	used := f.used()
	records := used["records"]
	for records-1-records/16 < used["frontends"]+2 { // victim-services fits: it needs two frontends
		records++
	}
	flags, f.failing = make([][]string, 3), make([]map[string]string, 3)
	for _, room := range []struct {
		node         int
		victim, flag string
		table        string
		limit        int
	}{
		{0, "slots", "slots", "slots", (used["slots"]+15)/16*16 + 16},
		{0, "backends", "backends", "backends", used["backends"] + 2},
		{0, "ranges", "source-ranges", "source_ranges", used["source_ranges"] + 1},
		{0, "names", "names", "names", used["names"]},
		{0, "services", "names", "names", used["names"]}, // a service port has a name, too
		{1, "frontends", "frontends", "frontends", used["frontends"] + 1},
		{1, "services", "services", "service_counters", used["services"] + 1},
		{2, "frontends", "records", "records", records},
	} {
		flags[room.node] = append(flags[room.node], fmt.Sprintf("--size-%s=%d", room.flag, room.limit))
		if f.failing[room.node] == nil {
			f.failing[room.node] = map[string]string{}
		}
		name := "default/victim-" + room.victim
		f.failing[room.node][name] = fmt.Sprintf("publish service %s: table %s is full (%d entries): raise the agent's --size-%s", name, room.table, room.limit, room.flag)
	}
	return flags
}

// used counts what the objects of the directory take of each table; services are service ports.
func (f *filling) used() map[string]int {
	f.t.Helper()
	source, err := watch.Load([]string{f.Manifests.Dir}, nil, watch.NodeConfig{Name: "n1"}, func(string) {})
	f.must(err)
	t := tables.NewFake(bpf.Sizes{})
	used, ports := map[string]int{}, map[string]bool{}
	for _, name := range source.Services() {
		in, _ := source.Input(name)
		d := decide.Decide(in, source.Node())
		_, err := t.Apply(d)
		f.must(err)
		for _, front := range d.Frontends {
			ports[front.Port.String()] = true
		}
	}
	for row, err := range t.Reader().Fill() {
		f.must(err)
		used[row.Table] = int(row.Used)
	}
	used["services"] = len(ports)
	return used
}

// write replaces what fills the tables, and the victims.
func (f *filling) write(full, grown bool) {
	f.t.Helper()
	text := ""
	for i, kind := range victims {
		text += f.victim(kind, 10+i, grown).text()
	}
	f.must(f.Manifests.WriteText("victims.yaml", text))
	if !full {
		f.must(f.Manifests.Remove("fillers.yaml"))
		return
	}
	text = ""
	for _, s := range fillers() {
		text += s.text()
	}
	f.must(f.Manifests.WriteText("fillers.yaml", text))
}

// victim is before and after it needs more.
func (f *filling) victim(kind string, number int, grown bool) manifest {
	s := manifest{name: "victim-" + kind, number: number, ports: 1, ready: []place{at(f.a)}, balanced: kind == "ranges"}
	switch {
	case kind == "slots" && !grown: // has the backend, without using it
		s.quiet = []place{at(f.d)}
	case kind == "slots":
		s.ready = append(s.ready, at(f.d))
	case !grown:
	case kind == "backends":
		s.quiet = []place{at(f.d)}
	case kind == "ranges":
		s.ranges = []string{"192.0.2.0/24", "2001:db8::/32"}
	case kind == "names":
		s.ready[0].node = "another"
	case kind == "frontends":
		s.external = 1
	case kind == "services":
		s.ports = 2
	}
	return s
}

func fillers() []manifest {
	one := func(int) string { return "n1" }
	return []manifest{
		{name: "many-slots", number: 50, ports: 1, ready: nobodies(0, 30, one)},
		{name: "many-names", number: 51, ports: 1, quiet: nobodies(100, 30, func(i int) string { return fmt.Sprintf("node-%d", i) })},
		{name: "many-backends", number: 52, ports: 1, quiet: nobodies(200, 30, one)},
		{name: "many-ranges", number: 53, ports: 1, balanced: true, ranges: []string{"10.0.0.0/8", "172.16.0.0/12", "fd00::/8"}},
		{name: "many-frontends", number: 54, ports: 1, external: 15},
		{name: "many-services", number: 55, ports: 5},
	}
}

// load asks the other Service and all victims, on every node.
func (f *filling) load() *traffic {
	f.t.Helper()
	l := f.traffic()
	for _, client := range f.clients {
		l.hold(client, web(1).address)
		l.ask(client, web(1).address, f.a, f.d)
		for i := range victims {
			l.askOver(client, way{"tcp", i%2 == 0}, web(10+i).address(i%2 == 0), f.a, f.d)
		}
	}
	return l
}

// settle waits until each node has the fillers or has them no more, exactly these Services fail there, in that way, and nothing
// else waits.
func (f *filling) settle(full bool, failing []map[string]string) {
	f.t.Helper()
	services := 1 + len(victims)
	if full {
		services += len(fillers())
	}
	for i, a := range f.agents {
		want := maps.Clone(failing[i])
		if want == nil {
			want = map[string]string{}
		}
		var got map[string]string
		if lab.Await(patience, func() bool {
			s, err := agent.ReadStatus(f.LockDir(), a.node.PinPath())
			got = map[string]string{}
			for _, fails := range s.Failing {
				got[fails.Service.String()] = wants.ReplaceAllString(fails.Error, "")
			}
			return err == nil && s.Services == services && s.Dirty == len(want) && maps.Equal(got, want)
		}) != nil {
			f.t.Fatalf("%s: what fails (-want +got):\n%s", a.node.Name, cmp.Diff(want, got))
		}
	}
}

// wants is how many entries a Service would take.
var wants = regexp.MustCompile(`, the Service wants [1-9][0-9]*`)

// checkTold looks at the command line and at the metrics.
func (a *running) checkTold(failing map[string]string) {
	a.t.Helper()
	text, code := a.run(a.node, "status")
	text = wants.ReplaceAllString(text, "")
	if (code == 0) != (len(failing) == 0) || strings.Count(text, "failing ") != len(failing) {
		a.t.Errorf("%s: nearlb status ends with %d, want %v to fail:\n%s", a.node.Name, code, slices.Sorted(maps.Keys(failing)), text)
	}
	scrape := a.scrape()
	for name, problem := range failing {
		if line := fmt.Sprintf("failing   %s: %s (", name, problem); !strings.Contains(text, line) {
			a.t.Errorf("%s: nearlb status lacks %q:\n%s", a.node.Name, line, text)
		}
		table, limit := "", 0
		_, err := fmt.Sscanf(problem[strings.Index(problem, "table "):], "table %s is full (%d", &table, &limit)
		a.must(err)
		if line := fmt.Sprintf("nearlb_table_limit{table=%q} %d\n", table, limit); !strings.Contains(scrape, line) {
			a.t.Errorf("%s: the metrics lack %s:\n%s", a.node.Name, line, scrape)
		}
	}
	if len(failing) > 0 && !strings.Contains(scrape, `nearlb_publication_errors_total{cause="table_full"}`) {
		a.t.Errorf("%s: the metrics do not tell of a full table", a.node.Name)
	}
	if line := fmt.Sprintf("nearlb_services_failing %d\n", len(failing)); !strings.Contains(scrape, line) {
		a.t.Errorf("%s: the metrics lack %s:\n%s", a.node.Name, line, scrape)
	}
}

// checkGrown asks for what the victims have in the end.
func (f *filling) checkGrown() {
	f.t.Helper()
	for _, client := range f.clients {
		for _, six := range []bool{false, true} {
			slots := web(10).address(six)
			f.awaitOver(client, way{"tcp", six}, slots, f.a, f.d)
			f.awaitOver(client, way{"tcp", six}, netip.AddrPortFrom(web(15).address(six).Addr(), servicePort+1), f.a)
			external := netip.MustParseAddr(map[bool]string{false: "198.51.14.1", true: "2001:db8:1:e::1"}[six])
			f.awaitOver(client, way{"tcp", six}, netip.AddrPortFrom(external, servicePort), f.a)
		}
	}
	for _, n := range f.nodes {
		dump := f.dump(n)
		for _, want := range []string{"sources=192.0.2.0/24", "sources=2001:db8::/32", "node=another"} {
			if !strings.Contains(dump, want) {
				f.t.Errorf("%s: no %s in the tables:\n%s", n.Name, want, dump)
			}
		}
	}
}
