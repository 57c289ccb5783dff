// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
)

// scene is something that fails.
type scene struct {
	name        string
	nearlbAlone bool // kube-proxy has nothing that could be measured
	heartbeats  bool // nearlb's nodes hear each other
	play        func(*world) (figures, error)
	rows        []row
}

// row is a line of the table.
type row struct {
	title, wanted string
	text          func(figures) string
}

// figures are what was seen in a scene.
type figures struct {
	all     []sample      // of the Service to which something happened
	lasts   time.Duration // how long connections were begun
	at      time.Duration // when it happened
	told    time.Duration // when the API server said so, or it was over
	others  []sample      // of a Service to which nothing happened
	counted int           // ejections
	detail  string
}

// outcome is a scene with every proxy.
type outcome struct {
	scene
	figures map[string]figures // by the proxy's name
}

// How long a backend loses SYNs, and all of a Service do.
const (
	synsLast = 30 * time.Second
	hangsFor = 15 * time.Second
)

// notReadyAfter is when Kubernetes takes the endpoints of a node away that has fallen silent: node-monitor-grace-period.
const notReadyAfter = 50 * time.Second

// scenes are all there are, with the times that they have in this run.
func (o options) scenes() []scene {
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.3g", o.spans(d).Seconds()) }
	return []scene{
		{name: "node", play: playNode, rows: []row{
			{"a node of 4 of 10 backends loses its power: p99 of connects in the first second after", "1.1 s", func(f figures) string { return spread(f.since(0, time.Second), 99) }},
			{"the same, from then until Kubernetes says so " + seconds(notReadyAfter) + " s later", "", func(f figures) string { return spread(f.since(time.Second, f.told-f.at), 99) }},
			{"the same: connects that failed or took a second or longer, in the first second", "", func(f figures) string { return share(f.since(0, time.Second)) }},
			{"the same, in the second one", "", func(f figures) string { return share(f.since(time.Second, 2*time.Second)) }},
			{"the same, from then until Kubernetes says so", "0", func(f figures) string { return share(f.since(2*time.Second, f.told-f.at)) }},
		}},
		{name: "node-heartbeats", nearlbAlone: true, heartbeats: true, play: playNode, rows: []row{
			{"the same with heartbeats, in the second one", "", func(f figures) string { return share(f.since(time.Second, 2*time.Second)) }},
			{"the same with heartbeats, from then until Kubernetes says so", "0", func(f figures) string { return share(f.since(2*time.Second, f.told-f.at)) }},
		}},
		{name: "idle", heartbeats: true, play: playIdle, rows: []row{
			{"such a node has lost its power " + fmt.Sprintf("%.0f s", idleFor.Seconds()) + " ago, and nobody has connected since (nearlb: with heartbeats): connects that failed or took a second or longer, in the first " + seconds(idleLast) + " seconds", "0", func(f figures) string { return share(f.since(0, f.lasts)) }},
		}},
		{name: "syns", play: playSYNs, rows: []row{
			{"one of 10 backends drops SYNs, 1,000 connects a second: those that failed or took a second or longer, in the first second", "", func(f figures) string { return share(f.since(0, time.Second)) }},
			{"the same, in the second one", "0", func(f figures) string { return share(f.since(time.Second, 2*time.Second)) }},
			{"the same, in the " + seconds(synsLast-2*time.Second) + " seconds after", "0", func(f figures) string { return share(f.since(2*time.Second, f.lasts)) }},
		}},
		{name: "hang", play: playHang, rows: []row{
			{"all backends of a Service hang for " + seconds(hangsFor) + " s: connects to another Service of the same nodes that failed, or took a second or longer", "0", func(f figures) string { return share(within(f.others, f.at, f.told+5*time.Second)) }},
			{"the same: connects to that Service that began half a second or more after its backends came back, of a second or longer", "0", func(f figures) string { return share(f.since(f.told-f.at+500*time.Millisecond, f.lasts)) }},
		}},
		{name: "roll", play: playRoll, rows: []row{
			{fmt.Sprint(o.restarts()) + " restarts, one backend after the other, each of which is listed for 300 ms after its port has closed, 1,000 connects a second: failed", "", refusals},
		}},
		{name: "roll-retry", nearlbAlone: true, play: playRollRetry, rows: []row{{"the same, with nearlb.io/retry-refused", "0", refusals}}},
		{name: "load", play: playLoad, rows: []row{
			{"one of 10 backends works ten times as long as the others, clients ask for 80 % of what all can do: p99 of requests", "", loaded},
		}},
		{name: "load-least", nearlbAlone: true, play: playLoadLeast, rows: []row{{"the same, with nearlb.io/balance: least-connections", "half of nearlb's, or less", loaded}}},
		{name: "loss", nearlbAlone: true, play: playLoss, rows: ejected("a twentieth of all packets of servers is lost: backends left out")},
		{name: "slow", nearlbAlone: true, play: playSlow, rows: ejected("a backend answers half of its SYNs: backends left out")},
		{name: "flood", nearlbAlone: true, play: playFlood, rows: ejected("a pod floods a Service with SYNs: backends left out")},
		{name: "never", nearlbAlone: true, play: playNever, rows: ejected("a client never answers SYN-ACKs: backends left out")},
	}
}

func ejected(title string) []row {
	return []row{{title, "0", func(f figures) string { return fmt.Sprintf("%d; %s", f.counted, f.detail) }}}
}

// since are connections by when they began, after it happened.
func (f figures) since(from, to time.Duration) []sample { return within(f.all, f.at+from, f.at+to) }

// slowSeconds has how many connections were slow of each second that has any, counted from when it happened.
func (f figures) slowSeconds() map[int]int {
	out := map[int]int{}
	for _, s := range f.all {
		if s.slow() {
			out[int((s.began-f.at).Seconds())]++
		}
	}
	return out
}

// share is how many of the connections were slow.
func share(all []sample) string {
	slow, failed := count(all, sample.slow), count(all, func(s sample) bool { return s.failed })
	if slow == 0 {
		return fmt.Sprintf("0 of %s", thousands(len(all)))
	}
	text := fmt.Sprintf("%s of %s (%.2g %%)", thousands(slow), thousands(len(all)), 100*float64(slow)/float64(len(all)))
	if failed > 0 {
		text += fmt.Sprintf(", %s failed", thousands(failed))
	}
	return text
}

func spread(all []sample, p int) string {
	took, failed := percentile(all, p)
	switch {
	case failed:
		return "failed"
	case took >= time.Second:
		return fmt.Sprintf("%.1f s", took.Seconds())
	}
	return fmt.Sprintf("%.1f ms", took.Seconds()*1000)
}

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// event happens at a time of a stream.
type event struct {
	at time.Duration
	do func() error
}

// streams opens connections to a Service while things happen. Times are those of the stream.
func (w *world) streams(service string, rate int, lasts time.Duration, events ...event) ([]sample, error) {
	began := time.Now()
	var all errgroup.Group
	for _, e := range events {
		all.Go(func() error {
			time.Sleep(time.Until(began.Add(e.at)))
			return e.do()
		})
	}
	samples, err := streamFrom(w.clients, []netip.AddrPort{at(service, false), at(service, true)}, rate, lasts, began)
	return samples, errors.Join(err, all.Wait())
}

// playNode has a node fall silent, without a word.
func playNode(w *world) (f figures, err error) {
	dead, dies := w.nodes[0], unplug
	if w.heartbeats {
		if err := w.awaitHeartbeats(); err != nil {
			return f, err
		}
		dies = (*lab.Node).LosePower // its programs would answer as long as it has its uplink
		defer func() { err = errors.Join(err, dead.RegainPower()) }()
	}
	f = figures{at: w.spans(5 * time.Second), lasts: w.spans(65 * time.Second)}
	f.told = f.at + w.spans(notReadyAfter)
	f.all, err = w.streams("web", 300, f.lasts, event{f.at, func() error { return dies(dead) }}, event{f.told, func() error {
		for _, s := range w.servers {
			s.gone = s.Node == dead
		}
		w.publish()
		return nil
	}})
	return f, err
}

// idleFor is how long nobody connects after a node has died, which is no shorter in a quick run: nodes ask each other once a second. idleLast is how
// long connections are begun then.
const (
	idleFor  = 8 * time.Second
	idleLast = 10 * time.Second
)

// playIdle begins connections when a node has been dead for a while.
func playIdle(w *world) (f figures, err error) {
	if w.heartbeats {
		if err := w.awaitHeartbeats(); err != nil {
			return f, err
		}
	}
	if err := w.nodes[0].LosePower(); err != nil {
		return f, err
	}
	time.Sleep(idleFor)
	f.lasts = w.spans(idleLast)
	f.all, err = w.streams("web", 300, f.lasts)
	return f, errors.Join(err, w.nodes[0].RegainPower()) // or the API server waits for its agent
}

// awaitHeartbeats waits until the clients' node hears every other one.
func (w *world) awaitHeartbeats() error {
	if err := lab.Await(time.Minute, func() bool {
		s, err := agent.ReadStatus(w.lab.LockDir(), w.here.PinPath())
		return err == nil && s.Heartbeats != nil && s.Heartbeats.Answer == len(w.nodes)
	}); err != nil {
		return fmt.Errorf("hear the other nodes: %w", err)
	}
	return nil
}

// unplug is what a node that loses its power looks like to the others: nothing comes back, not even that it cannot be reached.
func unplug(n *lab.Node) error {
	return n.Netfilter(`
table netdev dead {
	chain ingress { type filter hook ingress device "` + lab.Uplink + `" priority 0; policy drop; }
}`)
}

// deaf has a pod lose packets that come to it.
func deaf(s *server, which string) error {
	return s.Netfilter(`
table inet deaf {
	chain input {
		type filter hook input priority filter
		` + which + ` drop
	}
}`)
}

const syns = "tcp flags & (syn | ack) == syn"

func hears(s *server) error { return s.Netfilter("delete table inet deaf") }

func playSYNs(w *world) (f figures, err error) {
	f = figures{at: w.spans(5 * time.Second), lasts: w.spans(5*time.Second + synsLast)}
	f.all, err = w.streams("web", 1000, f.lasts, event{f.at, func() error { return deaf(w.of("web")[0], syns) }})
	return f, err
}

func playHang(w *world) (f figures, err error) {
	f = figures{at: w.spans(5 * time.Second), told: w.spans(5*time.Second + hangsFor), lasts: w.spans(30 * time.Second)}
	each := func(do func(*server) error) func() error {
		return func() (err error) {
			for _, s := range w.of("web") {
				err = errors.Join(err, do(s))
			}
			return err
		}
	}
	began := time.Now()
	var both errgroup.Group
	both.Go(func() (err error) {
		f.all, err = w.streams("web", 100, f.lasts, event{f.at, each(func(s *server) error { return deaf(s, syns) })}, event{f.told, func() error {
			err := each(hears)()
			f.told = time.Since(began) // it takes a moment on a machine that has other things to do
			return err
		}})
		return err
	})
	both.Go(func() (err error) {
		f.others, err = w.streams("other", 100, f.lasts)
		return err
	})
	err = both.Wait()
	return f, err
}

// loaded is how long requests took.
func loaded(f figures) string {
	return fmt.Sprintf("%s of %s", spread(f.all, 99), thousands(len(f.all)))
}

// refusals are connections that failed.
func refusals(f figures) string {
	return fmt.Sprintf("%s of %s", thousands(count(f.all, func(s sample) bool { return s.failed })), thousands(len(f.all)))
}

// restarts is how many backends are restarted, and how long each takes: for a while it is listed though its process has gone, then it is no
// endpoint, then it serves again and is one.
const (
	restarts     = 50
	restartEvery = 2 * time.Second
	listedFor    = 300 * time.Millisecond
)

// restarts is how many there are in this run.
func (o options) restarts() int { return int(o.spans(restarts*restartEvery) / restartEvery) }

func playRoll(w *world) (figures, error) {
	f := figures{lasts: w.spans(restarts * restartEvery)}
	var rolled errgroup.Group
	rolled.Go(func() error {
		for n := range w.restarts() {
			if err := w.restart(w.of("web")[n%len(w.of("web"))]); err != nil {
				return err
			}
		}
		return nil
	})
	var err error
	f.all, err = w.streams("web", 1000, f.lasts)
	return f, errors.Join(err, rolled.Wait())
}

// restart has a server end and come back, as a Pod's container does that ends with SIGTERM at once.
func (w *world) restart(s *server) error {
	begin := time.Now()
	if err := s.serves.Close(); err != nil {
		return err
	}
	time.Sleep(listedFor)
	s.gone = true
	w.publish()
	time.Sleep(time.Until(begin.Add(restartEvery / 2)))
	var err error
	if s.serves, err = s.Serve(targetPort); err != nil {
		return err
	}
	s.gone = false
	w.publish()
	time.Sleep(time.Until(begin.Add(restartEvery)))
	return nil
}

// playRollRetry waits for the first refusal that no client hears of: from then on the Service's annotation is in force.
func playRollRetry(w *world) (figures, error) {
	w.annotations = map[string]string{"nearlb.io/retry-refused": "true"}
	w.publish()
	if err := w.awaitRetried(); err != nil {
		return figures{}, err
	}
	return playRoll(w)
}

// awaitRetried closes the port of one backend until a hundred connections in a row do not notice.
func (w *world) awaitRetried() error {
	s := w.of("web")[0]
	if err := s.serves.Close(); err != nil {
		return err
	}
	if err := lab.Await(time.Minute, func() bool {
		for i := range 100 {
			if once(w.clients[0], at("web", i%2 == 1), time.Second) != nil {
				return false
			}
		}
		return true
	}); err != nil {
		return fmt.Errorf("connect beside a backend that refuses: %w", err)
	}
	var err error
	s.serves, err = s.Serve(targetPort)
	return err
}

// healthy streams while what disturbs goes on, and counts who was left out.
func (w *world) healthy(disturb func() error) (f figures, err error) {
	f.lasts = w.spans(30 * time.Second)
	if f.all, err = w.streams("web", 500, f.lasts, event{0, disturb}); err != nil {
		return f, err
	}
	f.detail = thousands(len(f.all)) + " connects"
	f.counted, err = w.ejections()
	return f, err
}

func playLoss(w *world) (figures, error) {
	return w.healthy(func() (err error) {
		for _, s := range w.servers {
			err = errors.Join(err, s.Netfilter(`
table inet lossy {
	chain input { type filter hook input priority filter; numgen random mod 20 == 0 drop; }
}`))
		}
		for _, n := range w.nodes { // what servers send: in the pod itself the loss would be an error
			err = errors.Join(err, n.Netfilter(`
table inet lossy {
	chain forward { type filter hook forward priority filter; oifname "`+lab.Uplink+`" numgen random mod 20 == 0 drop; }
}`))
		}
		return err
	})
}

func playSlow(w *world) (figures, error) {
	return w.healthy(func() error { return deaf(w.of("web")[0], syns+" numgen random mod 2 == 0") })
}
