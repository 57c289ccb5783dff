// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/rig"
)

// C19. Somebody deletes or overwrites entries of a table by hand: the next audit tells of it by the table's name, in the log and
// in the metrics, puts back what was there, and new connections are answered as before.
func TestEveryTableThatSomebodyDamagedIsRepaired(t *testing.T) {
	c := newCluster(t)
	for _, verdict := range []string{"drop_no_backend", "drop_no_frontend", "drop_bad_record", "drop_source_range", "drop_no_service"} {
		c.dropped[verdict] = true // while the damage lasts
	}
	n1, n2 := c.node(), c.node()
	client, a, d := c.pod(n1, "client"), c.servers(n1, "a")[0], c.servers(n2, "d")[0]
	outside, err := c.AddOutside(lab.OutsideOptions{Name: "outside"})
	c.must(err)
	s := web(1, a, d)
	for i := range s.Ports {
		s.Ports[i].NodePort = nodePort
	}
	s.LoadBalancers = []lab.LoadBalancer{{IP: netip.MustParseAddr("203.0.113.1")}, {IP: netip.MustParseAddr("2001:db8:2::1")}}
	s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	c.publish("web.yaml", s)
	agents := c.agent(n1, "--audit-interval=200ms", "--metrics-address=127.0.0.1:0", "--service-cidr=10.96.0.0/16,fd96::/112")
	agents.serving()
	atNode := func(six bool) netip.AddrPort { return netip.AddrPortFrom(n1.Address(six), nodePort) }
	c.awaitAnswers(outside, atNode, a, d)
	want := c.dump(n1)
	for _, damage := range damages() {
		t.Run(damage.name, func(t *testing.T) {
			before, all := agents.drift(damage.table), agents.serving().Drift
			c.must(rig.Tables(c.Lab, n1, damage.do))
			c.await("the metrics tell of "+damage.table, func() bool { return agents.drift(damage.table) > before })
			agents.await("the status tells", func(s agent.Status) bool { return s.Drift > all })
			c.await("tables as before", func() bool { return c.dump(n1) == want })
			c.awaitAnswers(client, s.address, a, d)
			c.awaitAnswers(n1, s.address, a, d)
			c.awaitAnswers(outside, atNode, a, d)
		})
	}
	if err := agents.Stop(); err != nil {
		t.Error(err)
	}
}

// drift is how many differences audits found in a table, by the metrics.
func (a *running) drift(table string) (count int) {
	a.t.Helper()
	_, after, found := strings.Cut(a.scrape(), fmt.Sprintf("nearlb_drift_total{table=%q} ", table))
	if found {
		_, err := fmt.Sscan(after, &count)
		a.must(err)
	}
	return count
}

type damage struct {
	name, table string
	do          func(t *bpf.NearlbMaps) error
}

// damages are one or two of every table that the agent writes.
func damages() []damage {
	return []damage{
		{"frontends deleted", "frontends", func(t *bpf.NearlbMaps) error { return deleteAll[bpf.NearlbFrontendKey](t.Frontends) }},
		{"a frontend names another record", "frontends", func(t *bpf.NearlbMaps) error {
			return overwriteAll[bpf.NearlbFrontendKey](t.Frontends, func(record []byte) { record[0] ^= 1 })
		}},
		{"records overwritten", "records", func(t *bpf.NearlbMaps) error { return spoil(t.Records, 40) }},
		{"slots overwritten", "slots", func(t *bpf.NearlbMaps) error { return spoil(t.Slots, 0) }},
		{"backends overwritten", "backends", func(t *bpf.NearlbMaps) error { return spoil(t.Backends, 12) }},
		{"address filter cleared", "known_addresses", func(t *bpf.NearlbMaps) error {
			return overwriteArray(t.KnownAddresses, t.KnownAddresses.MaxEntries(), func(bits []byte) { clear(bits) })
		}},
		{"source ranges deleted", "source_ranges", func(t *bpf.NearlbMaps) error { return deleteAll[bpf.NearlbSourceRangeKey](t.SourceRanges) }},
		{"settings overwritten", "config", func(t *bpf.NearlbMaps) error {
			var s bpf.NearlbSettings
			if err := t.Config.Lookup(uint32(0), &s); err != nil {
				return err
			}
			s.CidrCount, s.SnatCount, s.NodePort4, s.Netns, s.Disabled = 0, 0, bpf.NearlbAddress{}, 1, 1
			return t.Config.Put(uint32(0), &s)
		}},
		{"devices deleted", "devices", func(t *bpf.NearlbMaps) error { return deleteAll[uint32](t.Devices) }},
		{"a device that is none", "devices", func(t *bpf.NearlbMaps) error { return t.Devices.Put(uint32(4242), bpf.NearlbDevice{Source4: 1}) }},
		{"names deleted", "names", func(t *bpf.NearlbMaps) error { return deleteAll[bpf.NearlbNameKey](t.Names) }},
		{"names overwritten", "names", func(t *bpf.NearlbMaps) error {
			return overwriteAll[bpf.NearlbNameKey](t.Names, func(name []byte) { name[0]++ })
		}},
	}
}

func keysOf[K any](m *ebpf.Map) (keys []K, err error) {
	var key K
	var value []byte
	for entries := m.Iterate(); entries.Next(&key, &value); err = entries.Err() {
		keys = append(keys, key)
	}
	if err == nil && len(keys) == 0 {
		err = errors.New("nothing to damage")
	}
	return keys, err
}

func deleteAll[K any](m *ebpf.Map) error {
	keys, err := keysOf[K](m)
	for _, key := range keys {
		err = errors.Join(err, m.Delete(&key))
	}
	return err
}

func overwriteAll[K any](m *ebpf.Map, change func(value []byte)) error {
	keys, err := keysOf[K](m)
	for _, key := range keys {
		value, failed := m.LookupBytes(&key)
		if failed == nil {
			change(value)
			failed = m.Put(&key, value)
		}
		err = errors.Join(err, failed)
	}
	return err
}

// spoil changes bytes of all elements of an array that are in use, from an offset on.
func spoil(m *ebpf.Map, offset int) error {
	return overwriteArray(m, min(m.MaxEntries(), 1<<13), func(value []byte) { // ids are given from the lowest on
		for i := offset; i < min(offset+16, len(value)); i++ {
			value[i] ^= 0x55
		}
	})
}

// overwriteArray changes the elements below a bound that are not zero.
func overwriteArray(m *ebpf.Map, below uint32, change func(value []byte)) error {
	changed := 0
	for i := range below {
		value, err := m.LookupBytes(i)
		if err != nil {
			return err
		}
		if strings.Trim(string(value), "\x00") == "" {
			continue
		}
		change(value)
		if err := m.Put(i, value); err != nil {
			return err
		}
		changed++
	}
	if changed == 0 {
		return errors.New("nothing to damage")
	}
	return nil
}
