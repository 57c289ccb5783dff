// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/journal"
)

func TestAChangeHasTheFieldsOfTheContract(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for want, change := range map[string]journal.Change{
		`{"node":"n1","time":"2026-01-02T03:04:05.000000006Z","service":"prod/web","port":"http","protocol":"TCP","what":"backend-removed","backend":"10.244.2.9:8080","from":"active, zone","because":"EndpointSlice prod/web-abc: not ready"}` + "\n": {Node: "n1",
			Time: at, Service: "prod/web", Port: "http", Protocol: "TCP", What: "backend-removed", Backend: "10.244.2.9:8080", From: "active, zone", Because: "EndpointSlice prod/web-abc: not ready"},
		`{"node":"n1","time":"2026-01-02T03:04:05.000000006Z","service":"","port":"","what":"agent-stopped","because":"it was told to"}` + "\n": {Node: "n1", Time: at, What: "agent-stopped", Because: "it was told to"},
	} {
		var out bytes.Buffer
		if err := command.WriteJSONLine(&out, change); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
	}
}

func TestNoChangesAreToldApartFromNoneThatMatch(t *testing.T) {
	for filter, want := range map[changeFilter]string{{}: "No changes: nothing was published of late.\n", {service: "web"}: "Nothing matches the filters.\n"} {
		var out bytes.Buffer
		if err := newChangePrinter(newsPrinter[journal.Change]{out: &out}, filter).end(); err != nil || out.String() != want {
			t.Errorf("of %+v: %q, %v", filter, out.String(), err)
		}
	}
}

func TestChangesOfNoServiceGoWithAFilter(t *testing.T) {
	grown, web := journal.Change{What: "tables-grown"}, journal.Change{What: "backend-added", Service: "prod/web", Port: "http"}
	node := journal.Change{What: "node-silent", Services: []string{"prod/api", "prod/web"}}
	for filter, want := range map[string][3]bool{"": {true, true, true}, "web": {false, true, true}, "prod/web:http": {false, true, true}, "prod/db": {false, false, false}, "api": {false, false, true}} {
		f := changeFilter{service: filter}
		if got := [3]bool{f.keeps(&grown), f.keeps(&web), f.keeps(&node)}; got != want {
			t.Errorf("--service %q keeps %v, want %v", filter, got, want)
		}
	}
}
