// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// ejectable are tables whose backends can be left out: *maps.Tables.
type ejectable interface {
	Evidence(maps.Suspect) (maps.Evidence, bool)
	Eject(s maps.Suspect, until uint64, times int) (refused string, err error)
	Readmit(maps.Suspect) bool
	Ejected() []maps.Evidence
	Readmitted() []maps.Readmission
}

// ejector leaves backends out that do not answer. The programs tell it of them; it asks each by itself before it believes that, so that no
// client can make this node leave out a backend that answers it. It costs nothing while every backend answers, and a look at those that are
// left out each second while there are some.
type ejector struct {
	tables  ejectable
	mode    lb.Ejection // of Services that say nothing
	answers func(context.Context, netip.AddrPort) bool
	now     func() uint64 // nanoseconds since the machine started
	log     *slog.Logger
	changes *changes // nil: nobody is told
	metrics *metrics.Metrics

	heard   chan heard
	asking  map[maps.Suspect]bool
	ends    map[maps.Suspect]end    // of those that are left out
	watched map[maps.Suspect]uint64 // those that would be left out, in a Service that only observes: until when
}

// heard is what a backend answered to the node's own question.
type heard struct {
	suspect maps.Suspect
	answers bool
}

// end is when a backend's time is over, and when it was asked last since then.
type end struct{ until, asked uint64 }

// askAgain is how often a backend is asked whose time is over and that no connection has tried: nanoseconds.
const askAgain = uint64(10 * time.Second)

// lookEvery is how often the backends are looked at that are left out.
const lookEvery = time.Second

// suspects are those that the programs tell of: *maps.SuspectReader.
type suspects interface {
	Read() (maps.Suspect, error)
	End() error
	Close() error
}

func newEjector(tables ejectable, mode lb.Ejection, log *slog.Logger, changes *changes, m *metrics.Metrics) *ejector {
	return &ejector{tables: tables, mode: mode, answers: heardFrom, now: bpf.BootNanoseconds, log: log, changes: changes, metrics: m,
		heard: make(chan heard), asking: map[maps.Suspect]bool{}, ends: map[maps.Suspect]end{}, watched: map[maps.Suspect]uint64{}}
}

// followHealth leaves backends out that do not answer, until ctx ends.
func (r *running) followHealth(ctx context.Context) {
	e := newEjector(r.tables, r.options.Ejection, r.log, r.changes, r.metrics)
	told := make(chan maps.Suspect)
	go func() {
		defer close(told)
		for ctx.Err() == nil {
			err := readSuspects(ctx, told, func() (suspects, error) { return maps.NewSuspectReader(&r.objects.NearlbMaps) })
			if r.trouble("read suspects", err) {
				r.log.Error("read suspects", "error", err)
			}
			pause(ctx, readAgain)
		}
	}()
	e.run(ctx, told)
}

// readSuspects hands out what the programs tell until ctx ends, or it cannot be read.
func readSuspects(ctx context.Context, told chan<- maps.Suspect, open func() (suspects, error)) (err error) {
	from, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	defer context.AfterFunc(ctx, func() { _ = from.End() })()
	for {
		s, err := from.Read()
		if errors.Is(err, ringbuf.ErrFlushed) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case told <- s:
		case <-ctx.Done():
			return nil
		}
	}
}

// run decides until told ends, which ctx ends.
func (e *ejector) run(ctx context.Context, told <-chan maps.Suspect) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		var due <-chan time.Time
		if e.look(ctx) {
			due = tick.C
		}
		select {
		case s, more := <-told:
			if !more {
				return
			}
			e.suspect(ctx, s)
		case a := <-e.heard:
			e.judge(a)
		case <-due:
		}
	}
}

// modeOf is what becomes of a backend that does not answer.
func (e *ejector) modeOf(v maps.Evidence) lb.Ejection {
	if v.Mode != "" {
		return v.Mode
	}
	return e.mode
}

// suspect asks a backend that the programs tell of.
func (e *ejector) suspect(ctx context.Context, s maps.Suspect) {
	if v, known := e.tables.Evidence(s); !known || v.Until != 0 || e.modeOf(v) == lb.EjectionOff || e.watched[s] > e.now() {
		return
	}
	e.ask(ctx, s)
}

// ask has the node itself connect to a backend; the answer comes to judge.
func (e *ejector) ask(ctx context.Context, s maps.Suspect) {
	v, known := e.tables.Evidence(s)
	if !known || e.asking[s] {
		return
	}
	e.asking[s] = true
	go func() {
		a := heard{s, e.answers(ctx, v.Address)}
		select {
		case e.heard <- a:
		case <-ctx.Done():
		}
	}()
}

// judge leaves a backend out that has not answered the node either, and takes one back that has.
func (e *ejector) judge(a heard) {
	delete(e.asking, a.suspect)
	v, known := e.tables.Evidence(a.suspect)
	mode := e.modeOf(v)
	switch {
	case !known || mode == lb.EjectionOff:
	case a.answers:
		if e.tables.Readmit(a.suspect) {
			e.readmitted(v, "it answers this node")
		}
	case mode == lb.EjectionObserve:
		e.observe(v)
	case v.Until == 0 || e.ends[a.suspect].failed(v.Until, e.now()):
		e.eject(v)
	}
}

// failed says whether a connection has tried the backend since, and was not answered in its time.
func (t end) failed(until, now uint64) bool { return until != t.until && now >= until }

func (e *ejector) eject(v maps.Evidence) {
	now := e.now()
	times := v.NextTime(now)
	length := maps.EjectionTime(times)
	until := now + uint64(length)
	refused, err := e.tables.Eject(v.Suspect, until, times)
	switch {
	case err != nil:
		e.log.Debug("leave backend out", "service", v.Port.String(), "backend", v.Address.String(), "error", err)
	case refused != "":
		e.log.Debug("backend does not answer", "service", v.Port.String(), "backend", v.Address.String(), "problem", refused)
	default:
		e.ends[v.Suspect] = end{until: until}
		e.metrics.Ejection()
		e.log.Warn("backend left out", "service", v.Port.String(), "backend", v.Address.String(), "until", time.Now().Add(length).UTC().Format(time.RFC3339), "problem", v.Text())
		e.tell(v, "backend-ejected", "for "+length.String(), v.Text())
	}
}

// observe tells what would be done.
func (e *ejector) observe(v maps.Evidence) {
	e.watched[v.Suspect] = e.now() + uint64(maps.EjectionTime(1))
	e.log.Warn("backend does not answer", "service", v.Port.String(), "backend", v.Address.String(), "problem", v.Text())
	e.tell(v, "backend-ejected", "observed only, it gets connections as before", v.Text())
}

func (e *ejector) readmitted(v maps.Evidence, because string) {
	delete(e.ends, v.Suspect)
	e.log.Info("backend back in", "service", v.Port.String(), "backend", v.Address.String(), "change", because)
	e.tell(v, "backend-readmitted", "", because)
}

func (e *ejector) tell(v maps.Evidence, what, to, because string) {
	e.changes.tell(journal.Change{Service: v.Port.Service.String(), Port: v.Port.Port, Protocol: v.Port.Protocol.String(), What: what,
		Backend: addressText(v.Address), To: to, Because: because})
}

// answerReadmit takes a backend back that is left out, as a person says.
func (d *daemon) answerReadmit(w http.ResponseWriter, ask *http.Request) {
	at, err := netip.ParseAddrPort(ask.URL.Query().Get("backend"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := newLines(w)
	out.write(d.now.Load().tables.ReadmitAt(at, "somebody asked for it: nearlb backends readmit"))
	_ = out.flush() // the client went away
}

// AskReadmit has a running agent take all backends at an address and port back that new connections leave out, and says how many there were.
func AskReadmit(ctx context.Context, lockDir, pinPath string, at netip.AddrPort) (n int, err error) {
	query := url.Values{"backend": {at.String()}}
	return n, askAgent(ctx, Socket(lockDir, pinPath), "/readmit?"+query.Encode(), askTime, func(d *json.Decoder) error { return d.Decode(&n) })
}

// look tells of those that came back, and asks those whose time is over. It says whether there is anything to look at in a second.
func (e *ejector) look(ctx context.Context) bool {
	for _, back := range e.tables.Readmitted() {
		e.readmitted(back.Evidence, back.Because)
	}
	now := e.now()
	out := e.tables.Ejected()
	e.metrics.Ejected(len(out))
	for _, v := range out {
		if e.modeOf(v) != lb.EjectionOn && e.tables.Readmit(v.Suspect) {
			e.readmitted(v, "nearlb.io/ejection, or --ejection")
			continue
		}
		t, known := e.ends[v.Suspect]
		if !known { // of an agent that ran before
			t.until = v.Until
		}
		tried := t.failed(v.Until, now)
		if tried || now >= t.until && v.Until == t.until && now-t.asked >= askAgain {
			t.asked = now
			e.ask(ctx, v.Suspect)
		}
		e.ends[v.Suspect] = t
	}
	for s, until := range e.watched {
		if now >= until {
			delete(e.watched, s)
		}
	}
	return len(out)+len(e.watched) > 0
}

// The node's own question: so many connections, so long one after the other, and how long it waits for an answer to any. With a twentieth
// of all packets lost, all of them are in one of a million cases.
const (
	questions     = 6
	questionEvery = 30 * time.Millisecond
	answerTime    = 300 * time.Millisecond
)

// heardFrom says whether somebody answers TCP at an address: by a handshake, or by a reset. It is closed at once.
func heardFrom(ctx context.Context, at netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	replies := make(chan bool, questions)
	for i := range questions {
		go func() {
			pause(ctx, time.Duration(i)*questionEvery)
			replies <- ctx.Err() == nil && connects(ctx, at)
		}()
	}
	for range questions {
		if <-replies {
			return true
		}
	}
	return false
}

func connects(ctx context.Context, at netip.AddrPort) bool {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", at.String())
	if err == nil {
		_ = c.Close() // nothing was said
	}
	return err == nil || errors.Is(err, syscall.ECONNREFUSED)
}
