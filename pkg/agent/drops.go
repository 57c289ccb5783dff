// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// dropBytes are kept of events: some 1,500 of them.
const dropBytes = 512 << 10

// drops takes the programs' events, with names as they are at that time, and keeps the last ones for `nearlb drops`.
type drops struct {
	agent *daemon
	kept  *journal.Ring

	mu      sync.Mutex
	since   time.Time // when packets were first counted
	began   uint64    // the same for the tables at work, in nanoseconds since the machine started
	base    uint64    // packets that these had refused by then
	before  uint64    // packets that were refused with other tables since
	sampled uint64    // events since
}

func newDrops(d *daemon) *drops { return &drops{agent: d, kept: journal.NewRing(dropBytes)} }

// readAgain is how long after a failure events are read again. Packets are served meanwhile, and the ring keeps some of their events.
const readAgain = listenAgain

// events are those of a set of tables: *maps.EventReader.
type events interface {
	Read() (maps.Event, error)
	End() error
	Close() error
}

// follow reads the events of one set of tables until ctx ends.
func (d *drops) follow(ctx context.Context, names named, open func() (events, error)) {
	d.begin()
	defer d.end()
	for ctx.Err() == nil {
		err := d.read(ctx, names, open)
		if d.agent.diary.trouble("read events", err) {
			d.agent.log.Error("read events", "error", err)
		}
		pause(ctx, readAgain)
	}
}

// read notes events until ctx ends, or they cannot be read.
func (d *drops) read(ctx context.Context, names named, open func() (events, error)) (err error) {
	events, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, events.Close()) }()
	defer context.AfterFunc(ctx, func() { _ = events.End() })()
	d.agent.diary.trouble("read events", nil)
	for {
		event, err := events.Read()
		if errors.Is(err, ringbuf.ErrFlushed) {
			return nil
		}
		if err != nil {
			return err
		}
		d.note(names, event)
	}
}

// followDrops reads the programs' events until ctx ends.
func (r *running) followDrops(ctx context.Context) {
	r.daemon.drops.follow(ctx, r.tables, func() (events, error) { return maps.NewEventReader(&r.objects.NearlbMaps) })
}

// begin counts from what the tables at work have counted so far.
func (d *drops) begin() {
	refused, err := d.agent.reader.refused()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.since.IsZero() {
		d.since = time.Now()
	}
	if d.began, d.base = bpf.BootNanoseconds(), refused; err != nil {
		d.base = 0
	}
}

// end notes what tables counted that are left.
func (d *drops) end() {
	refused, _ := d.agent.reader.refused() // what cannot be read is missing in a number for people
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before += max(refused, d.base) - d.base
	d.base = refused
}

// named tells what is served where: *maps.Tables.
type named interface {
	PortAt(at netip.AddrPort, protocol uint8) (name lb.PortName, whole, found bool)
}

func (d *drops) note(names named, e maps.Event) {
	d.mu.Lock()
	if e.Booted >= d.began {
		d.sampled++
	}
	d.mu.Unlock()
	line, err := json.Marshal(d.row(names, e))
	if err == nil { // of texts and a time: there is no other case
		d.kept.Add(line)
	}
}

func (d *drops) row(names named, e maps.Event) journal.Drop {
	ago := time.Duration(bpf.BootNanoseconds() - e.Booted)
	row := journal.Drop{
		Node: d.agent.options.NodeName, Time: time.Now().Add(-ago).UTC(),
		Verdict: string(e.Verdict.Class), Reason: e.Verdict.Reason,
		Client: endText(e.Source), Frontend: endText(e.Destination), Protocol: protocolText(e.Protocol), Hook: e.Hook,
	}
	if name, whole, found := names.PortAt(e.Destination, e.Protocol); found {
		row.Service = name.Service.String()
		if whole {
			row.Port = name.Port
		}
	}
	if pod, known := d.agent.podAt(e.Source.Addr()); known {
		row.ClientPod = pod.String()
	}
	return row
}

// endText is one end of a packet; "" where a socket has no address yet.
func endText(end netip.AddrPort) string {
	switch {
	case end.Addr().IsUnspecified():
		return ""
	case end.Port() == 0:
		return end.Addr().String()
	}
	return end.String()
}

// protocolText is as the Kubernetes API spells it, else a number.
func protocolText(protocol uint8) string {
	switch protocol {
	case 1:
		return "ICMP"
	case 58:
		return "ICMPv6"
	}
	return lb.Protocol(protocol).String()
}

// unsampled counts the refused packets that no event told of.
func (d *drops) unsampled() (journal.Unsampled, error) {
	refused, err := d.agent.reader.refused()
	if err != nil {
		return journal.Unsampled{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.before + max(refused, d.base) - d.base
	return journal.Unsampled{Since: d.since, Packets: max(all, d.sampled) - d.sampled}, nil
}

// answer writes what is kept, how much was not sampled, and with ?follow=1 what comes until the client goes away.
func (d *drops) answer(w http.ResponseWriter, ask *http.Request) {
	told := journal.Unsampled{}
	answerNews(w, ask, d.kept, func(out *lines, follow bool) {
		if unsampled, err := d.unsampled(); err == nil && (unsampled != told || !follow) {
			told = unsampled
			out.write(News{Unsampled: &unsampled})
		}
	})
}

// ReadDrops has a running agent tell the events that it keeps (journal.Drop), and with follow what comes until ctx ends.
func ReadDrops(ctx context.Context, lockDir, pinPath string, follow bool, tell func(News) error) error {
	return readNews(ctx, lockDir, pinPath, "/drops", follow, tell)
}
