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
	"slices"
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
	Doubtful(maps.Suspect) (node string, others []maps.Evidence)
	OnNodes(names ...string) map[string][]maps.Evidence
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
	hear    func(context.Context, netip.AddrPort) reply
	now     func() uint64 // nanoseconds since the machine started
	log     *slog.Logger
	changes *changes // nil: nobody is told
	metrics *metrics.Metrics

	heard  chan heard
	asking map[maps.Suspect]bool
	asked  pace
	ends   map[maps.Suspect]end    // of those that are left out
	rests  map[maps.Suspect]uint64 // those that stay in though they do not answer: not asked until then
	line   []doubt                 // to be asked next

	doubted map[maps.Suspect]string // those that are left out because of their node, by its name
	powered map[string]uint64       // nodes of which a backend answered though others do not: not in doubt until then

	// Of heartbeats (ejection_silent.go).
	heartbeats     lb.Ejection
	nodes          *pulse // is told of nodes whose backends do, or do not, answer
	pulseNews      <-chan pulseNews
	silent         map[string]*silentNode
	silentHeard    chan silentHeard
	askingSilent   int
	askedOut       pace // of those that are left out already
	lookedAtSilent uint64
}

// doubt is a backend that has done nothing wrong: of a node that has others of several Services that do not answer.
type doubt struct {
	maps.Suspect
	node string
}

// heard is what a backend answered to the node's own question.
type heard struct {
	before maps.Evidence // when it was asked
	reply  reply
	node   string // not "": it was asked because of its node
}

// reply is what comes of the node's own question.
type reply int

const (
	replyUnknown reply = iota // the node could not ask: that says nothing of the backend
	replySilent
	replyAnswered
)

// Forged packets can name any backend that nobody has answered this node from: so many are asked at once, and so many in a second. The
// programs tell of the others again.
const (
	askAtOnce   = 12
	askOfNodes  = 8 // of these, at most so many that have done nothing wrong
	askInSecond = 64
)

// pace counts what was done in a second.
type pace struct {
	second uint64
	done   int
}

// take says whether there is one more.
func (p *pace) take(now uint64, most int) bool {
	if second := now / uint64(time.Second); second != p.second {
		*p = pace{second: second}
	}
	p.done++
	return p.done <= most
}

// left says whether take would be true.
func (p *pace) left(now uint64, most int) bool {
	return now/uint64(time.Second) != p.second || p.done < most
}

// end is when a backend's time is over, when it was asked last since then, and whether a connection has tried it in vain: that stays so,
// as under load the next one tries it as soon as it may.
type end struct {
	until, asked uint64
	tried        bool
}

// The programs let one connection try in tryTime (HEALTH_TRIAL), and take the SYN of one that had no answer after unansweredTime elsewhere.
const (
	tryTime        = uint64(2 * time.Second)
	unansweredTime = uint64(500 * time.Millisecond)
)

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
	return &ejector{tables: tables, mode: mode, hear: heardFrom, now: bpf.BootNanoseconds, log: log, changes: changes, metrics: m,
		heard: make(chan heard), asking: map[maps.Suspect]bool{}, ends: map[maps.Suspect]end{}, rests: map[maps.Suspect]uint64{},
		doubted: map[maps.Suspect]string{}, powered: map[string]uint64{},
		heartbeats: lb.EjectionOff, nodes: newPulse(""), silent: map[string]*silentNode{}, silentHeard: make(chan silentHeard)}
}

// followHealth leaves backends out that do not answer, until ctx ends.
func (r *running) followHealth(ctx context.Context) {
	e := newEjector(r.tables, r.daemon.options.Ejection, r.daemon.log, r.changes, r.daemon.metrics)
	e.heartbeats, e.nodes, e.pulseNews = r.daemon.heartbeats.mode, r.daemon.heartbeats.pulse, r.pulseNews
	told := make(chan maps.Suspect)
	go func() {
		defer close(told)
		for ctx.Err() == nil {
			err := readSuspects(ctx, told, func() (suspects, error) { return maps.NewSuspectReader(&r.objects.NearlbMaps) })
			if r.trouble("read suspects", err) {
				r.daemon.log.Error("read suspects", "error", err)
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
			e.askNext(ctx)
		case n := <-e.pulseNews:
			e.followNode(n)
		case h := <-e.silentHeard:
			e.judgeSilent(h)
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
	if v, known := e.tables.Evidence(s); !known || v.Until != 0 || e.modeOf(v) == lb.EjectionOff || e.rests[s] > e.now() {
		return
	}
	e.ask(ctx, doubt{Suspect: s})
}

// ask has the node itself connect to a backend, if it does not ask too many; the answer comes to judge.
func (e *ejector) ask(ctx context.Context, d doubt) bool {
	s := d.Suspect
	v, known := e.tables.Evidence(s)
	if !known || e.asking[s] || len(e.asking) >= askAtOnce || !e.asked.take(e.now(), askInSecond) {
		return false
	}
	e.asking[s] = true
	go func() {
		a := heard{v, e.hear(ctx, v.Address), d.node}
		select {
		case e.heard <- a:
		case <-ctx.Done():
		}
	}()
	return true
}

// askNext asks those in line, as far as not too many are asked.
func (e *ejector) askNext(ctx context.Context) {
	for len(e.line) > 0 && len(e.asking) < askOfNodes && e.asked.left(e.now(), askInSecond) {
		d := e.line[0]
		e.line = e.line[1:]
		if v, known := e.tables.Evidence(d.Suspect); known && v.Until == 0 { // nobody else has found out meanwhile
			e.ask(ctx, d)
		}
	}
}

// doubtNode puts the other backends of a node in line, where backends of several Services there are left out: nobody has to lose connections to
// each of them until it is found that the node has no power.
func (e *ejector) doubtNode(s maps.Suspect) {
	node, others := e.tables.Doubtful(s)
	if e.powered[node] > e.now() {
		return
	}
	for _, o := range others {
		waits := e.asking[o.Suspect] || slices.ContainsFunc(e.line, func(d doubt) bool { return d.Suspect == o.Suspect })
		if !waits && e.modeOf(o) == lb.EjectionOn && e.rests[o.Suspect] <= e.now() {
			e.line = append(e.line, doubt{o.Suspect, node})
		}
	}
}

// hasPower ends the doubt in a node's other backends: one of them answered this node, or a client. Where policies keep this node from all of
// them, that is what tells.
func (e *ejector) hasPower(node string) {
	if node == "" {
		return
	}
	e.powered[node] = e.now() + askAgain
	e.line = slices.DeleteFunc(e.line, func(d doubt) bool { return d.node == node })
	for s, of := range e.doubted {
		if of != node {
			continue
		}
		delete(e.doubted, s)
		if v, known := e.tables.Evidence(s); known && e.tables.Readmit(s) {
			e.readmitted(v, "another backend of node "+node+" answers")
		}
	}
}

// judge leaves a backend out that has not answered the node either, nor anybody meanwhile, and takes one back that has answered the node.
func (e *ejector) judge(a heard) {
	suspect := a.before.Suspect
	delete(e.asking, suspect)
	v, known := e.tables.Evidence(suspect)
	mode := e.modeOf(v)
	switch {
	case !known || mode == lb.EjectionOff:
	case a.reply == replyAnswered:
		if a.node != "" {
			e.rests[suspect] = e.now() + askAgain
		}
		e.hasPower(a.node)
		if e.tables.Readmit(suspect) {
			e.readmitted(v, "it answers this node")
		}
		e.nodeAnswers(v.Node)
	case a.reply == replyUnknown:
		e.rests[suspect] = e.now() + askAgain
		e.log.Warn("ask backend whether it answers", "service", v.Port.String(), "backend", v.Address.String(), "problem", "this node cannot connect to it: it gets connections as before")
	case v.AnsweredSince(a.before):
		e.hasPower(a.node)
		e.nodeAnswers(v.Node)
	case e.powered[a.node] > e.now():
	case mode == lb.EjectionObserve:
		e.observe(v)
	case v.Until == 0 || e.ends[suspect].tried:
		e.eject(v, a.node)
	}
}

// because is why a backend is left out; node is as in heard.
func because(v maps.Evidence, node string) string {
	if node == "" || v.Unanswered > 0 {
		return v.Text()
	}
	return "no answer to this node, nor from other backends of node " + node
}

// failed says whether a connection has tried the backend since, and was not answered in its time.
func (t end) failed(until, now uint64) bool {
	return until != t.until && now+tryTime >= until+unansweredTime
}

// due says whether the backend is to be asked: after a connection tried it in vain, and now and then when its time is over.
func (t end) due(until, now uint64) bool {
	if t.tried {
		return now-t.asked >= uint64(lookEvery)
	}
	return now >= t.until && until == t.until && now-t.asked >= askAgain
}

// eject leaves a backend out; node is as in heard. Where that is for what clients met, the others of its node are in doubt.
func (e *ejector) eject(v maps.Evidence, node string) {
	now := e.now()
	times := v.NextTime(now)
	length := maps.EjectionTime(times)
	until := now + uint64(length)
	refused, err := e.tables.Eject(v.Suspect, until, times)
	switch {
	case err != nil:
		e.log.Debug("leave backend out", "service", v.Port.String(), "backend", v.Address.String(), "error", err)
	case refused != "":
		e.rests[v.Suspect] = now + askAgain
		e.log.Debug("backend does not answer", "service", v.Port.String(), "backend", v.Address.String(), "problem", refused)
	default:
		e.ends[v.Suspect] = end{until: until}
		e.metrics.Ejection()
		e.log.Warn("backend left out", "service", v.Port.String(), "backend", v.Address.String(), "until", time.Now().Add(length).UTC().Format(time.RFC3339), "problem", because(v, node))
		e.tell(v, "backend-ejected", "for "+length.String(), because(v, node))
		if node != "" {
			e.doubted[v.Suspect] = node
			return
		}
		delete(e.doubted, v.Suspect)
		e.nodes.doubt(v.Node)
		e.doubtNode(v.Suspect)
	}
}

// observe tells what would be done.
func (e *ejector) observe(v maps.Evidence) {
	e.rests[v.Suspect] = e.now() + uint64(maps.EjectionTime(1))
	e.log.Warn("backend does not answer", "service", v.Port.String(), "backend", v.Address.String(), "problem", v.Text())
	e.tell(v, "backend-ejected", "observed only, it gets connections as before", v.Text())
}

func (e *ejector) readmitted(v maps.Evidence, because string) {
	delete(e.ends, v.Suspect)
	delete(e.doubted, v.Suspect)
	e.log.Info("backend back in", "service", v.Port.String(), "backend", v.Address.String(), "change", because)
	e.tell(v, "backend-readmitted", "", because)
}

func (e *ejector) tell(v maps.Evidence, what, to, because string) {
	e.changes.tell(journal.Change{Service: v.Port.Service.String(), Port: v.Port.Port, Protocol: v.Port.Protocol.String(), What: what,
		Backend: addressText(v.Address), To: to, Because: because})
	e.changes.show()
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
		if back.Answered {
			e.nodeAnswers(back.Node)
		} else { // by a person or a publication, whose word holds for a while beside heartbeats
			e.rests[back.Suspect] = e.now() + uint64(maps.EjectionTime(1))
		}
	}
	e.lookAtSilent(ctx)
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
		t.tried = t.tried || t.failed(v.Until, now)
		if t.due(v.Until, now) && e.rests[v.Suspect] <= now && e.ask(ctx, doubt{Suspect: v.Suspect}) {
			t.asked = now
		}
		e.ends[v.Suspect] = t
	}
	for s, until := range e.rests {
		if now >= until {
			delete(e.rests, s)
		}
	}
	for node, until := range e.powered {
		if now >= until {
			delete(e.powered, node)
		}
	}
	e.askNext(ctx)
	return len(out)+len(e.rests)+len(e.line)+len(e.powered)+len(e.silent) > 0
}

// The node's own question: so many connections, so long one after the other, and how long it waits for an answer to any. With a twentieth
// of all packets lost, all of them are in one of a million cases.
const (
	questions     = 6
	questionEvery = 30 * time.Millisecond
	answerTime    = 300 * time.Millisecond
)

// heardFrom asks whether somebody answers TCP at an address: by a handshake, or by a reset. It is closed at once.
func heardFrom(ctx context.Context, at netip.AddrPort) reply {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	replies := make(chan reply, questions)
	for i := range questions {
		go func() {
			pause(ctx, time.Duration(i)*questionEvery)
			replies <- connects(ctx, at)
		}()
	}
	worst := replySilent
	for range questions {
		switch r := <-replies; r {
		case replyAnswered:
			return r
		case replyUnknown:
			worst = r
		}
	}
	return worst
}

// connects asks once. What keeps the node itself from asking, as a lack of descriptors or of a route, is no silence.
func connects(ctx context.Context, at netip.AddrPort) reply {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", at.String())
	var timeout net.Error
	switch {
	case err == nil:
		_ = c.Close() // nothing was said
		return replyAnswered
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return replyAnswered
	case errors.Is(err, syscall.EHOSTUNREACH), errors.As(err, &timeout) && timeout.Timeout():
		return replySilent // EHOSTUNREACH: nobody has that address on the link
	}
	return replyUnknown
}
