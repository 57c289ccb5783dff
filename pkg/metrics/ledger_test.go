// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

func port(name string) lb.PortName {
	return lb.PortName{Service: lb.ServiceName{Namespace: "default", Name: name}, Port: "http", Protocol: lb.TCP}
}

// has checks that a scrape has these lines, and as many lines of the named metrics as are given.
func has(t *testing.T, when, text string, lines ...string) {
	t.Helper()
	count := map[string]int{}
	for _, line := range lines {
		if name, _, labelled := strings.Cut(line, "{"); labelled {
			count[name]++
		}
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("%s: no %s", when, line)
		}
	}
	for name, want := range count {
		if got := strings.Count(text, "\n"+name+"{"); got != want {
			t.Errorf("%s: %d rows of %s, want %d", when, got, name, want)
		}
	}
	if t.Failed() {
		t.Fatalf("%s:\n%s", when, text)
	}
}

const webLabels = `namespace="default",port="http",protocol="TCP",service="web"`

func TestTrafficOfServicesAndTheirBackendsIsSummedByNode(t *testing.T) {
	tables := &fake{services: []maps.ServiceTrafficRow{{ID: 1, Port: port("web"), Connections: 10}}, traffic: []maps.TrafficRow{
		{ID: 1, Generation: 1, Service: 1, Node: "n1", Zone: "a", Connections: 10, PacketsTo: 100, BytesTo: 1000},
		{ID: 2, Generation: 1, Service: 1, Node: "n2", Zone: "b"}, {ID: 3, Generation: 1, Service: 1, Node: "n2", Zone: "b"},
	}}
	m := New("v1")
	m.Read(reading(tables))
	if err := m.Look(); err != nil {
		t.Fatal(err)
	}
	if text := scrape(t, m); strings.Contains(text, "nearlb_service_connections_total{") {
		t.Errorf("what was before the start counts:\n%s", text)
	}
	tables.services[0].Connections, tables.services[0].Rejected = 15, 2
	for i := range tables.traffic {
		tables.traffic[i].Connections += uint64(i)
		tables.traffic[i].PacketsTo += 2
		tables.traffic[i].BytesTo += 20
		tables.traffic[i].PacketsFrom += 1
		tables.traffic[i].BytesFrom += 7
	}
	tables.failed = []maps.FailedRow{{Service: 1, Backend: 2, Generation: 1, Refused: true}, {Service: 1, Backend: 3, Generation: 1},
		{Service: 1, Backend: 1, Generation: 9}, {Service: 7, Backend: 1, Generation: 1}} // of an id that changed hands; of no service
	if err := m.Look(); err != nil {
		t.Fatal(err)
	}
	n1 := webLabels + `}`
	here, there := `backend_node="n1",backend_zone="a",`, `backend_node="n2",backend_zone="b",`
	has(t, "after traffic", scrape(t, m),
		`nearlb_service_connections_total{`+n1+` 5`,
		`nearlb_service_packets_total{direction="to_backend",`+n1+` 6`, `nearlb_service_packets_total{direction="from_backend",`+n1+` 3`,
		`nearlb_service_bytes_total{direction="to_backend",`+n1+` 60`, `nearlb_service_bytes_total{direction="from_backend",`+n1+` 21`,
		`nearlb_service_refused_packets_total{`+webLabels+`,verdict="reject"} 2`, `nearlb_service_refused_packets_total{`+webLabels+`,verdict="drop"} 0`,
		`nearlb_service_failed_connections_total{cause="refused",`+n1+` 1`, `nearlb_service_failed_connections_total{cause="unanswered",`+n1+` 2`,
		`nearlb_backend_connections_total{`+here+n1+` 0`, `nearlb_backend_connections_total{`+there+n1+` 3`,
		`nearlb_backend_failed_connections_total{`+here+`cause="refused",`+n1+` 0`, `nearlb_backend_failed_connections_total{`+here+`cause="unanswered",`+n1+` 0`,
		`nearlb_backend_failed_connections_total{`+there+`cause="refused",`+n1+` 1`, `nearlb_backend_failed_connections_total{`+there+`cause="unanswered",`+n1+` 1`,
		`nearlb_backend_packets_total{`+here+`direction="to_backend",`+n1+` 2`, `nearlb_backend_packets_total{`+there+`direction="to_backend",`+n1+` 4`,
		`nearlb_backend_packets_total{`+here+`direction="from_backend",`+n1+` 1`, `nearlb_backend_packets_total{`+there+`direction="from_backend",`+n1+` 2`,
		`nearlb_backend_bytes_total{`+here+`direction="to_backend",`+n1+` 20`, `nearlb_backend_bytes_total{`+there+`direction="to_backend",`+n1+` 40`,
		`nearlb_backend_bytes_total{`+here+`direction="from_backend",`+n1+` 7`, `nearlb_backend_bytes_total{`+there+`direction="from_backend",`+n1+` 14`)
}

// The limit holds whatever comes; what has a series keeps it; one that ends makes room.
func TestServicesBeyondTheLimitCountTogether(t *testing.T) {
	tables := &fake{}
	for i, name := range []string{"a", "b", "c", "d"} {
		tables.services = append(tables.services, maps.ServiceTrafficRow{ID: uint32(i + 1), Port: port(name)})
	}
	m := New("v1")
	m.Read(reading(tables)) // two of each have room
	step := func(when string, change func(), lines ...string) {
		t.Helper()
		change()
		if err := m.Look(); err != nil {
			t.Fatal(err)
		}
		has(t, when, scrape(t, m), lines...)
	}
	row := func(name, value string) string {
		return `nearlb_service_connections_total{namespace="default",port="http",protocol="TCP",service="` + name + `"} ` + value
	}
	rest := func(value string) string {
		return `nearlb_service_connections_total{namespace="other",port="other",protocol="other",service="other"} ` + value
	}
	step("without traffic", func() {}, "nearlb_service_series_omitted 0")
	step("in the order of traffic", func() { tables.services[3].Connections = 1 }, row("d", "1"), "nearlb_service_series_omitted 0")
	step("the next one", func() { tables.services[1].Connections = 2 }, row("d", "1"), row("b", "2"))
	step("too many", func() { tables.services[0].Connections, tables.services[2].Connections = 3, 4 },
		row("d", "1"), row("b", "2"), rest("7"), "nearlb_service_series_omitted 2")
	step("one ends", func() { tables.services = tables.services[:3] }, row("b", "2"), rest("7"))
	step("another has its room", func() { tables.services[2].Connections = 9 }, row("b", "2"), row("c", "5"), rest("7"), "nearlb_service_series_omitted 1")
	step("an id goes to another one", func() { tables.services[1] = maps.ServiceTrafficRow{ID: 2, Port: port("e"), Connections: 6} },
		row("c", "5"), rest("13"))
}

// Nobody reads counters between scrapes: what came before an id ended is told by whoever ends it.
func TestWhatCameBeforeAnIDEndedCountsThoughNobodyLooked(t *testing.T) {
	tables := &fake{services: []maps.ServiceTrafficRow{{ID: 1, Port: port("web"), Connections: 10}, {ID: 2, Port: port("other")}}, traffic: []maps.TrafficRow{
		{ID: 1, Generation: 1, Service: 1, Node: "n1", Zone: "a", Connections: 10, BytesTo: 1000},
	}}
	m := New("v1")
	m.Read(reading(tables))
	if err := m.Look(); err != nil {
		t.Fatal(err)
	}
	m.BackendEnded(port("web"), maps.TrafficRow{ID: 1, Generation: 1, Service: 1, Node: "n1", Zone: "a", Connections: 14, BytesTo: 1400})
	m.BackendEnded(port("web"), maps.TrafficRow{ID: 2, Generation: 1, Service: 1, Node: "n1", Zone: "a", Connections: 3, BytesTo: 300}) // began and ended unseen
	m.PortEnded(maps.ServiceTrafficRow{ID: 2, Port: port("other"), Connections: 5})
	tables.services = []maps.ServiceTrafficRow{{ID: 1, Port: port("web"), Connections: 20}, {ID: 2, Port: port("next"), Connections: 1}}
	tables.traffic = []maps.TrafficRow{{ID: 1, Generation: 2, Service: 1, Node: "n1", Zone: "a", Connections: 1, BytesTo: 100}}
	if err := m.Look(); err != nil {
		t.Fatal(err)
	}
	next := `namespace="other",port="other",protocol="other",service="other"` // two have room
	has(t, "after the look", scrape(t, m), `nearlb_zone_connections_total{backend_zone="a",client_zone="a"} 8`,
		`nearlb_service_connections_total{`+webLabels+`} 10`, `nearlb_service_connections_total{`+next+`} 1`,
		`nearlb_backend_connections_total{backend_node="n1",backend_zone="a",`+webLabels+`} 8`)
	m.BackendEnded(port("web"), maps.TrafficRow{ID: 1, Generation: 1, Service: 1, Zone: "a", Connections: 99}) // told late: the id is another's
	has(t, "told late", scrape(t, m), `nearlb_zone_connections_total{backend_zone="a",client_zone="a"} 8`)
}

// counting says how often its counters were read.
type counting struct {
	*fake
	reads int
}

func (c *counting) Traffic() iter.Seq2[maps.TrafficRow, error] {
	c.reads++
	return c.fake.Traffic()
}

func TestCountersAreReadAtAScrapeAndNotTwiceInASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tables := &counting{fake: &fake{}}
		m := New("v1")
		r := reading(tables.fake)
		r.Tables = tables
		told := 0
		r.Looked = func(error) { told++ }
		m.Read(r)
		for range 3 { // three who scrape every fifteen seconds
			time.Sleep(15 * time.Second)
			scrape(t, m)
			scrape(t, m)
			scrape(t, m)
		}
		if tables.reads != 3 || told != 3 {
			t.Errorf("counters were read %d times and told of %d times, want 3", tables.reads, told)
		}
	})
}
