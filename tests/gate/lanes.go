// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// lanes are how many suites run at once. Agents in namespaces wait for most of their time where processors are fast, so that six suites on
// two processors take three quarters of these; where a page fault costs what a hundred do elsewhere, three fill them, and six together take half
// as much processor time again for the same.
type lanes struct {
	sure  int         // these whatever the processors do
	most  int         // so many while processors are idle
	spare <-chan bool // says now and then whether they are: one suite more begins then
}

// lanesOf are those of a machine with so many processors.
func lanesOf(processors int) lanes { return lanes{sure: (3*processors + 1) / 2, most: 3 * processors} }

const (
	lookEvery = 5 * time.Second // between two looks at the processors
	spareFrom = 1.0 / 10        // share of the time between that processors were idle
)

// processors is what the kernel counts of all processors' time, in ticks.
type processors struct{ idle, all uint64 }

// look reads it; false: there is none, as on other systems.
func look() (p processors, ok bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return p, false
	}
	return parseProcessors(string(text))
}

// parseProcessors reads the first line of /proc/stat: cpu user nice system idle iowait irq softirq ... (proc_stat(5)).
func parseProcessors(stat string) (p processors, ok bool) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 6 || fields[0] != "cpu" {
		return p, false
	}
	for i, field := range fields[1:] {
		var ticks uint64
		if _, err := fmt.Sscan(field, &ticks); err != nil {
			return p, false
		}
		if i < 8 { // what guests took is in user and nice, too
			p.all += ticks
		}
		if i == 3 || i == 4 {
			p.idle += ticks
		}
	}
	return p, true
}

// spare tells whether processors were idle since an earlier look.
func (p processors) spare(earlier processors) bool {
	return p.all > earlier.all && float64(p.idle-earlier.idle) >= spareFrom*float64(p.all-earlier.all)
}

// watch says at each look whether processors have time, until the context ends. Where nobody counts their time they have.
func watch(ctx context.Context) <-chan bool {
	found := make(chan bool)
	go func() {
		ticks := time.NewTicker(lookEvery)
		defer ticks.Stop()
		for earlier, _ := look(); ; {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
			}
			now, ok := look()
			select {
			case <-ctx.Done():
				return
			case found <- !ok || now.spare(earlier):
			}
			earlier = now
		}
	}()
	return found
}
