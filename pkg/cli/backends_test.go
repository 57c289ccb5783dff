// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/table"
)

// shownBackends are those of one port: one is well, one refuses, one does not answer and is left out, one starts slowly, one takes long.
func shownBackends() []maps.BackendRow {
	number := func(n float64) *float64 { return &n }
	seconds := func(n int64) *int64 { return &n }
	rows := make([]maps.BackendRow, 6)
	for i := range rows {
		rows[i] = maps.BackendRow{Service: "prod/web", Port: "http", Protocol: "TCP", Address: netip.AddrFrom4([4]byte{10, 244, 2, byte(10 + i)}), BackendPort: 8080,
			Node: "n2", Zone: "a", Tier: "zone", State: "active", Lists: []string{"cluster"}, ID: uint32(i + 1), Generation: 1, Connections: 1000, Open: 12,
			SYN50: number(120), SYN99: number(800), LastReplySeconds: seconds(2), Share: number(0.2)}
	}
	rows[1].Refused, rows[1].LastReplySeconds = 7, seconds(300)
	rows[2].Unanswered, rows[2].LastReplySeconds, rows[2].SYN50, rows[2].SYN99 = 4, nil, nil, nil
	rows[2].EjectedSince, rows[2].EjectedUntil = "2026-01-02T03:04:05Z", "2026-01-02T03:04:15Z"
	rows[2].EjectedBecause = "no answer to 3 connections of several clients, nor to this node"
	rows[3].Share = number(0.02)
	rows[4].SYN99 = number(1_200_000)
	rows[5].State, rows[5].Lists, rows[5].Share, rows[5].Open = "quiet", nil, nil, 0
	return rows
}

func backendTable(t *testing.T, width int, wide bool, rows []maps.BackendRow) []byte {
	t.Helper()
	markLess(rows)
	var out bytes.Buffer
	if err := table.WriteColumns(&out, width, wide, dump[maps.BackendRow]{columns: backendColumns()}.at(false).columns, rows); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestTheTableOfBackendsTellsWhichAreSlowOrDead(t *testing.T) {
	golden(t, "backends_well_80.txt", backendTable(t, 80, false, shownBackends()[:1]))
	goldenOf(t, "backends_160.txt", 160, backendTable(t, 160, false, shownBackends()))
	goldenOf(t, "backends_wide.txt", 0, backendTable(t, 0, true, shownBackends()))
}

// Equal shares of tables whose size no number of backends divides differ by a slot, which is no difference.
func TestAShareThatDiffersByASlotIsNotLess(t *testing.T) {
	rows := shownBackends()[:2]
	a, b := 0.36, 0.32
	rows[0].Share, rows[1].Share = &a, &b
	markLess(rows)
	if rows[0].Less || rows[1].Less {
		t.Errorf("%v, %v", rows[0].Less, rows[1].Less)
	}
}
