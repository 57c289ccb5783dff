// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// ledger adds up what the counters of services and backends gain, since the first look. The counters end with their ids:
// what they gained is added here whenever they are looked at, and when they end, so that the sums never fall.
type ledger struct {
	tables Tables
	own    func() string // zone of this node, "" unknown

	mu       sync.Mutex
	begun    bool
	last     time.Time
	backends rows[maps.TrafficRow]        // as of the last look, by id
	ports    rows[maps.ServiceTrafficRow] // likewise
	once     maps.FailedOnce
	zones    zones
	services *series[lb.PortName]
	servers  *series[server]

	endings struct {
		mu    sync.Mutex
		added []func() // counts that ended during a look, to be added after it
	}
}

// server is what the series of backends are made for: the backends of a service port on one node. Its labels are bounded and stay
// the same when pods come and go, which addresses and names of pods do not.
type server struct {
	port       lb.PortName
	node, zone string
}

// traffic is a sum.
type traffic struct {
	connections, refused, unanswered           uint64
	packetsTo, bytesTo, packetsFrom, bytesFrom uint64
	rejected, dropped                          uint64 // packets that no backend got
}

func (t *traffic) add(o traffic) {
	t.connections += o.connections
	t.refused += o.refused
	t.unanswered += o.unanswered
	t.packetsTo += o.packetsTo
	t.bytesTo += o.bytesTo
	t.packetsFrom += o.packetsFrom
	t.bytesFrom += o.bytesFrom
	t.rejected += o.rejected
	t.dropped += o.dropped
}

func newLedger(tables Tables, own func() string, limits Limits) *ledger {
	return &ledger{tables: tables, own: own,
		zones: newZones(), services: newSeries[lb.PortName](limits.Services), servers: newSeries[server](limits.Backends)}
}

// look adds what came since the last look.
func (l *ledger) look() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lookLocked()
}

// lookAgain is look for those who come often; false when it left out to look.
func (l *ledger) lookAgain() (looked bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun && time.Since(l.last) < lookEvery {
		return false, nil
	}
	return true, l.lookLocked()
}

func (l *ledger) lookLocked() error {
	l.settle()
	defer l.settle()
	began := time.Now()
	err := errors.Join(l.lookAtServices(), l.lookAtBackends())
	l.lookAtFlows()
	if err == nil {
		l.begun, l.last = true, began
		l.forget()
	}
	return err
}

// end has counts added that ended: at once, or by the look that goes on.
func (l *ledger) end(add func()) {
	l.endings.mu.Lock()
	l.endings.added = append(l.endings.added, add)
	l.endings.mu.Unlock()
	if l.mu.TryLock() {
		l.settle()
		l.mu.Unlock()
	}
}

// settle adds the counts that ended.
func (l *ledger) settle() {
	l.endings.mu.Lock()
	added := l.endings.added
	l.endings.added = nil
	l.endings.mu.Unlock()
	for _, add := range added {
		add()
	}
}

// endBackend adds what a backend gained between the last look and its end. An id that the look found to be another's by then
// is left out: what its end brought is not known.
func (l *ledger) endBackend(port lb.PortName, row maps.TrafficRow) {
	before, found := l.backends.get(row.ID)
	if !l.begun || found && before.Generation != row.Generation {
		return
	}
	l.add(l.zones.label(l.own()), port, row, backendsGain(before, row))
	l.backends.set(row.ID, row)
}

// endPort is endBackend of a service port.
func (l *ledger) endPort(row maps.ServiceTrafficRow) {
	before, found := l.ports.get(row.ID)
	if !l.begun || found && before.Port != row.Port {
		return
	}
	if gain := servicesGain(before, row); gain != (traffic{}) {
		l.services.of(row.Port).add(gain)
	}
	l.ports.set(row.ID, row)
}

func (l *ledger) lookAtServices() (failed error) {
	l.ports.turn()
	for row, err := range l.tables.ServiceTraffic() {
		if err != nil {
			failed = err
			continue
		}
		if gain := servicesGain(l.ports.before(row.ID), row); l.begun && gain != (traffic{}) {
			l.services.of(row.Port).add(gain)
		}
		l.ports.set(row.ID, row)
	}
	l.ports.turned(failed)
	return failed
}

// servicesGain is what a service port's counters gained. Numbers that are lower, or of another port, began at zero.
func servicesGain(before, now maps.ServiceTrafficRow) traffic {
	if before.Port != now.Port || before.Connections > now.Connections || before.Rejected > now.Rejected || before.Dropped > now.Dropped {
		before = maps.ServiceTrafficRow{}
	}
	return traffic{connections: now.Connections - before.Connections, rejected: now.Rejected - before.Rejected, dropped: now.Dropped - before.Dropped}
}

func (l *ledger) lookAtBackends() (failed error) {
	client := l.zones.label(l.own())
	l.backends.turn()
	for row, err := range l.tables.Traffic() {
		if err != nil {
			failed = err
			continue
		}
		l.note(client, row)
		l.backends.set(row.ID, row)
	}
	l.backends.turned(failed)
	return failed
}

// note adds what a backend gained. What was sent to it is its service's too; of connections the service has counts of its own.
func (l *ledger) note(client string, now maps.TrafficRow) {
	var gain traffic
	if l.begun {
		gain = backendsGain(l.backends.before(now.ID), now)
	}
	port, _ := l.ports.get(now.Service)
	l.add(client, port.Port, now, gain)
}

// add adds a backend's gain to its zone, and to its service port unless that has no name.
func (l *ledger) add(client string, port lb.PortName, row maps.TrafficRow, gain traffic) {
	l.zones.add(zonePair{client, l.zones.label(row.Zone)}, gain)
	if gain == (traffic{}) || port == (lb.PortName{}) {
		return
	}
	l.servers.of(server{port, row.Node, row.Zone}).add(gain)
	gain.connections = 0
	l.services.of(port).add(gain)
}

// backendsGain is what a backend's counters gained. Numbers that are lower, or of another generation, began at zero.
func backendsGain(before, now maps.TrafficRow) traffic {
	if before.Generation != now.Generation || before.BytesTo > now.BytesTo || before.BytesFrom > now.BytesFrom || before.Connections > now.Connections {
		before = maps.TrafficRow{}
	}
	return traffic{connections: now.Connections - before.Connections,
		packetsTo: now.PacketsTo - before.PacketsTo, bytesTo: now.BytesTo - before.BytesTo,
		packetsFrom: now.PacketsFrom - before.PacketsFrom, bytesFrom: now.BytesFrom - before.BytesFrom}
}

// lookAtFlows counts the connections that failed. Those that had before the first look are not ours.
func (l *ledger) lookAtFlows() {
	for row := range l.tables.Failed(&l.once) {
		port, named := l.ports.get(row.Service)
		if !l.begun || !named {
			continue
		}
		failed := traffic{unanswered: 1}
		if row.Refused {
			failed = traffic{refused: 1}
		}
		l.services.of(port.Port).add(failed)
		if b, used := l.backends.get(row.Backend); used && b.Generation == row.Generation {
			l.servers.of(server{port.Port, b.Node, b.Zone}).add(failed)
		}
	}
}

// forget ends the series of what is no more.
func (l *ledger) forget() {
	services, servers := l.services.sweep(), l.servers.sweep()
	for row := range l.ports.all() {
		services.keep(row.Port)
	}
	for row := range l.backends.all() {
		if port, named := l.ports.get(row.Service); named {
			servers.keep(server{port.Port, row.Node, row.Zone})
		}
	}
	services.end()
	servers.end()
}
