// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/rig"
)

// What a churn is made of.
const (
	churnRests   = 10  // how often everything is brought back to what it was, and looked at
	churnBreaks  = 20  // how often all watches break, every other time for good: the objects are listed again
	churnPassing = 200 // Services that come and go, at most
	churnRate    = 100 // changes in a second
	restPatience = 2 * time.Minute
)

// churn is a day's changes in minutes: rolling updates, Services that come, go and change their type, endpoints that grow and
// shrink, watches that break. Between them everything is brought back to what it was at the beginning.
type churn struct {
	*course
	random  *rand.Rand
	passing []int // Services that came and have not gone
	rests   []state
}

// state is what must not grow.
type state struct {
	changes     int
	memory      int64
	descriptors int
	fills       []maps.FillRow
}

// churn makes so many changes and fails if something has grown.
func (c *course) churn(changes int) error {
	ch := &churn{course: c, random: rand.New(rand.NewPCG(1, 2))}
	c.world.fill(0)
	if _, err := c.launch(); err != nil {
		return err
	}
	began := time.Now()
	for i := range changes {
		time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / churnRate)))
		ch.change()
		if i%max(1, changes/churnBreaks) == 0 {
			if i/max(1, changes/churnBreaks)%2 == 1 {
				c.api.Compact()
			}
			c.api.BreakWatches()
		}
		if (i+1)%max(1, changes/churnRests) == 0 {
			paused := time.Now()
			if err := ch.rest(i + 1); err != nil {
				return err
			}
			began = began.Add(time.Since(paused))
		}
	}
	ch.print()
	return errors.Join(ch.judge(), c.stop(true))
}

// change makes one of the changes.
func (c *churn) change() {
	number := c.random.IntN(c.services)
	switch kind := c.random.IntN(100); {
	case kind < 55:
		c.variant(number).rolled++ // one pod of a rolling update
		c.api.Put(c.slice(number))
	case kind < 65 && len(c.passing) < churnPassing:
		for number = c.services; slices.Contains(c.passing, number); number++ {
		}
		c.passing = append(c.passing, number)
		c.put(number)
	case kind < 75 && len(c.passing) > 0:
		i := c.random.IntN(len(c.passing))
		c.remove(c.passing[i])
		c.passing = slices.Delete(c.passing, i, i+1)
	case kind < 85:
		types := []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer}
		c.variant(number).kind = types[c.random.IntN(len(types))]
		c.api.Put(c.service(number))
	case kind < 93:
		c.variant(number).more = c.random.IntN(2*c.endpoints) - c.endpoints
		c.api.Put(c.slice(number))
	default:
		watched := c.watched[c.random.IntN(len(c.watched))]
		c.setReady(watched, c.random.IntN(3)-1)
	}
}

// rest brings everything back, waits until the node has followed and freed what it can, and looks.
func (c *churn) rest(changes int) error {
	for _, number := range c.passing {
		c.remove(number)
	}
	c.passing = nil
	for number, v := range c.variants {
		if v.more != 0 || v.kind != "" {
			*v = variant{rolled: v.rolled}
			c.put(number)
		}
	}
	for _, number := range c.watched {
		c.setReady(number, 0)
	}
	if _, err := c.await(); err != nil {
		return err
	}
	now := state{changes: changes}
	for deadline := time.Now().Add(restPatience); ; time.Sleep(500 * time.Millisecond) {
		if err := c.look(&now); err != nil {
			return err
		}
		grown := len(c.rests) > 0 && c.compare(now) != nil || len(c.rests) == 0 && time.Until(deadline) > restPatience-20*time.Second
		if !grown || time.Now().After(deadline) {
			break
		}
	}
	c.rests = append(c.rests, now)
	c.say("%d changes: own memory %.1f MiB, %d descriptors, %s", now.changes, float64(now.memory)/(1<<20), now.descriptors, fillText(now.fills))
	return nil
}

func (c *churn) look(now *state) (err error) {
	pid := c.process.PID()
	if now.memory, err = rig.OwnMemory(pid); err != nil {
		return err
	}
	if now.descriptors, err = rig.Descriptors(pid); err != nil {
		return err
	}
	status, err := agent.ReadStatus(c.lab.LockDir(), c.proxy.node.PinPath())
	if err != nil {
		return err
	}
	if len(status.Failing) > 0 || len(status.Trouble) > 0 {
		return fmt.Errorf("after %d changes: %d Services fail, %v", now.changes, len(status.Failing), status.Trouble)
	}
	now.fills = nil
	return c.lab.Mounted(func() error {
		tables, err := bpf.OpenMaps(c.proxy.node.PinPath(), true)
		if err != nil {
			return err
		}
		defer tables.Close()
		reader, err := maps.NewReader(tables)
		if err != nil {
			return err
		}
		for row, err := range reader.Fill() {
			if err != nil {
				return err
			}
			now.fills = append(now.fills, row)
		}
		return nil
	})
}

// ofTraffic are the tables that fill with connections and not with objects.
var ofTraffic = []string{bpf.NearlbMapFlows, bpf.NearlbMapAffinity, bpf.NearlbMapFragments, bpf.NearlbMapSocks}

// compare says what is more than at the first rest, by more than a garbage collector's mood.
func (c *churn) compare(now state) error {
	first := c.rests[0]
	var errs []error
	if limit := first.memory*5/4 + 8<<20; now.memory > limit {
		errs = append(errs, fmt.Errorf("own memory grew from %d to %d bytes", first.memory, now.memory))
	}
	if now.descriptors > first.descriptors+2 {
		errs = append(errs, fmt.Errorf("open descriptors grew from %d to %d", first.descriptors, now.descriptors))
	}
	for i, row := range now.fills {
		if before := first.fills[i].Used; !slices.Contains(ofTraffic, row.Table) && row.Used > before {
			errs = append(errs, fmt.Errorf("table %s grew from %d to %d", row.Table, before, row.Used))
		}
	}
	return errors.Join(errs...)
}

// judge compares the last rest with the first.
func (c *churn) judge() error {
	if len(c.rests) < 2 {
		return errors.New("judge a churn: want at least 20 changes")
	}
	return c.compare(c.rests[len(c.rests)-1])
}

// print writes the table of docs/performance.md. Entries of all tables are one figure: compare names the table that grew.
func (c *churn) print() {
	kernel, cpu := rig.Machine()
	fmt.Printf("%s Services x endpoints, %d changes a second. Linux %s, %s.\n\n", c.size, churnRate, kernel, cpu)
	fmt.Print("| changes | memory of its own (RssAnon) | open descriptors | entries of tables, without those of connections |\n|---:|---:|---:|---:|\n")
	for _, r := range c.rests {
		fmt.Printf("| %s | %.1f MiB | %d | %s |\n", thousands(r.changes), float64(r.memory)/(1<<20), r.descriptors, thousands(r.entries()))
	}
}

// entries are those of all tables that fill with objects.
func (s state) entries() (sum int) {
	for _, row := range s.fills {
		if !slices.Contains(ofTraffic, row.Table) {
			sum += int(row.Used)
		}
	}
	return sum
}

func fillText(rows []maps.FillRow) string {
	var parts []string
	for _, row := range rows {
		if row.Used > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", row.Table, row.Used))
		}
	}
	return strings.Join(parts, ", ")
}

// variant is how a Service differs from what it was at first.
type variant struct {
	rolled int                // pods that rolling updates replaced
	more   int                // endpoints, besides those that all Services have
	kind   corev1.ServiceType // "": ClusterIP
}

// generations is how many addresses an endpoint has in turn.
const generations = 8

// variant gives that of a Service that is not watched; a watched one's is never looked at.
func (w *world) variant(number int) *variant {
	if w.variants[number] == nil {
		w.variants[number] = &variant{}
	}
	return w.variants[number]
}

// address is that of an endpoint that exists as an object alone, after rolling updates.
func (w *world) address(number, e int, v *variant) netip.Addr {
	generation := v.rolled / w.endpoints
	if e < v.rolled%w.endpoints {
		generation++
	}
	room := 2 * w.endpoints // of a Service, as endpoints may grow
	return plus(firstEndpoint, (generation%generations)*(w.services+churnPassing)*room+number*room+e)
}
