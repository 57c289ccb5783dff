// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/table"
)

func sampleDrop() journal.Drop {
	return journal.Drop{Node: "n1", Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Verdict: "drop", Reason: "no-local-endpoints", Service: "prod/web",
		Port: "http", Client: "10.244.1.7:40112", ClientPod: "prod/cart-0", Frontend: "10.96.0.10:80", Protocol: "TCP", Hook: "from_net"}
}

func TestADropHasTheFieldsOfTheContract(t *testing.T) {
	var out bytes.Buffer
	if err := command.WriteJSONLine(&out, sampleDrop()); err != nil {
		t.Fatal(err)
	}
	want := `{"node":"n1","time":"2026-01-02T03:04:05.000000006Z","verdict":"drop","reason":"no-local-endpoints","service":"prod/web","port":"http",` +
		`"client":"10.244.1.7:40112","client_pod":"prod/cart-0","frontend":"10.96.0.10:80","protocol":"TCP","hook":"from_net"}` + "\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestDropsAreFilteredByWhatTheyAre(t *testing.T) {
	for _, row := range []struct {
		filter dropFilter
		want   bool
	}{
		{dropFilter{}, true},
		{dropFilter{service: "web"}, true}, {dropFilter{service: "prod/web:http"}, true}, {dropFilter{service: "prod/web:dns"}, false}, {dropFilter{service: "eb"}, false},
		{dropFilter{client: "10.244.1.7"}, true}, {dropFilter{client: "10.244.1.7:40112"}, true}, {dropFilter{client: "10.244.1.7:1"}, false}, {dropFilter{client: "10.244.1.8"}, false},
		{dropFilter{client: "cart-0"}, true}, {dropFilter{client: "prod/cart-0"}, true}, {dropFilter{client: "test/cart-0"}, false}, {dropFilter{client: "rt-0"}, false},
		{dropFilter{verdict: "drop"}, true}, {dropFilter{verdict: "reject"}, false}, {dropFilter{verdict: "no-local-endpoints"}, true}, {dropFilter{verdict: "no-endpoints"}, false},
		{dropFilter{since: sampleDrop().Time}, true}, {dropFilter{since: sampleDrop().Time.Add(1)}, false},
	} {
		d := sampleDrop()
		if got := row.filter.keeps(&d); got != row.want {
			t.Errorf("%+v keeps it: %v, want %v", row.filter, got, row.want)
		}
	}
	bare := journal.Drop{Client: "10.244.1.7"}
	if f := (dropFilter{client: "10.244.1.7"}); !f.keeps(&bare) {
		t.Error("a client without a port is not found by its address")
	}
	if f := (dropFilter{client: "10.244.1.7:5"}); f.keeps(&bare) {
		t.Error("a client without a port is found by a port")
	}
}

// printed is what a printer makes of some news.
func printed(t *testing.T, format string, follow bool, news ...agent.News) (out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	p := newDropPrinter(newsPrinter[journal.Drop]{out: &o, errs: &e, format: format, follow: follow, columns: dropColumns}, dropFilter{})
	p.nothing = "nothing"
	for _, n := range news {
		if err := p.tell(n); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	return o.String(), e.String()
}

func TestDropsSayHowManyPacketsTheyLackWhereverTheyArePrinted(t *testing.T) {
	text, err := json.Marshal(sampleDrop())
	if err != nil {
		t.Fatal(err)
	}
	line := json.RawMessage(text)
	drop, more := agent.News{Line: &line}, agent.News{Unsampled: &journal.Unsampled{Since: sampleDrop().Time, Packets: 7}}
	table := "TIME                 VERDICT                   CLIENT       FRONTEND           SERVICE\n" +
		clock(sampleDrop().Time, time.Now()) + "  drop: no-local-endpoints  prod/cart-0  10.96.0.10:80/TCP  prod/web:http\n"
	lacks := "7 more since " + clock(sampleDrop().Time, time.Now()) + " were counted, and not told of one by one\n"
	for _, row := range []struct {
		format    string
		follow    bool
		news      []agent.News
		out, errs string
	}{
		{command.FormatTable, false, []agent.News{drop, more}, table + lacks, ""},
		{command.FormatTable, false, []agent.News{drop}, table, ""}, // the counters could not be read
		{command.FormatTable, false, nil, "nothing\n", ""},
		{command.FormatTable, true, []agent.News{drop, more, more}, table, lacks},
		{command.FormatJSONL, false, []agent.News{drop, more}, string(text) + "\n", lacks},
		{command.FormatTable, false, []agent.News{{Unsampled: &journal.Unsampled{}}}, "nothing\n", ""},
		{command.FormatJSONL, true, []agent.News{{Forgotten: 3}}, "", "nearlb: 3 packets are missing here: they came faster than they were read\n"},
	} {
		out, errs := printed(t, row.format, row.follow, row.news...)
		if diff := cmp.Diff([]string{row.out, row.errs}, []string{out, errs}); diff != "" {
			t.Errorf("%s, followed %v:\n%s", row.format, row.follow, diff)
		}
	}
}

func TestATableThatIsFollowedDoesNotBecomeNarrower(t *testing.T) {
	var out bytes.Buffer
	s := newStream(&out, false, []table.Column[string]{{Heading: "A", Cell: func(r string) string { return r }}, {Heading: "B", Cell: func(string) string { return "b" }}})
	for _, text := range []string{"xx", "xxxx", "x"} {
		if err := s.write(0, text); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := out.String(), "A   B\nxx  b\nxxxx  b\nx     b\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestTimesInThePastAreReadAsAgeOrAsTime(t *testing.T) {
	for text, want := range map[string]time.Duration{"5m": 5 * time.Minute, "2h30m": 150 * time.Minute} {
		var f sinceFlag
		if err := f.Set(text); err != nil || time.Since(f.at) < want || time.Since(f.at) > want+time.Hour {
			t.Errorf("%s: %v, %v", text, f.at, err)
		}
	}
	var f sinceFlag
	if err := f.Set("2026-01-02T03:04:05Z"); err != nil || !f.at.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
		t.Errorf("%v, %v", f.at, err)
	}
	for _, text := range []string{"", "-5m", "0s", "yesterday", "5"} {
		if err := f.Set(text); err == nil || !strings.Contains(err.Error(), "want a time before now") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
