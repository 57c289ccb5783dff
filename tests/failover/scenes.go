// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/lab"
)

// scene is something that fails.
type scene struct {
	name        string
	nearlbAlone bool // kube-proxy has nothing that could be measured
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

// notReadyAfter is when Kubernetes takes the endpoints of a node away that has fallen silent: node-monitor-grace-period.
const notReadyAfter = 50 * time.Second

func scenes() []scene {
	return []scene{
		{name: "node", play: playNode, rows: []row{
			{"a node of 4 of 10 backends loses its power: p99 of connects in the first second after", "1.1 s", func(f figures) string { return spread(f.since(0, time.Second), 99) }},
			{"the same, from then until Kubernetes says so 50 s later", "", func(f figures) string { return spread(f.since(time.Second, f.told-f.at), 99) }},
			{"the same: connects that failed or took a second or longer, in the first second", "", func(f figures) string { return share(f.since(0, time.Second)) }},
			{"the same, in the second one", "", func(f figures) string { return share(f.since(time.Second, 2*time.Second)) }},
			{"the same, from then until Kubernetes says so", "0", func(f figures) string { return share(f.since(2*time.Second, f.told-f.at)) }},
		}},
		{name: "syns", play: playSYNs, rows: []row{
			{"one of 10 backends drops SYNs, 1,000 connects a second: those that failed or took a second or longer, in the first second", "", func(f figures) string { return share(f.since(0, time.Second)) }},
			{"the same, in the second one", "0", func(f figures) string { return share(f.since(time.Second, 2*time.Second)) }},
			{"the same, in the 28 seconds after", "0", func(f figures) string { return share(f.since(2*time.Second, f.lasts)) }},
		}},
		{name: "hang", play: playHang, rows: []row{
			{"all backends of a Service hang for 15 s: connects to another Service of the same nodes that failed, or took a second or longer", "0", func(f figures) string { return share(within(f.others, f.at, f.told+5*time.Second)) }},
			{"the same: connects to that Service that began half a second or more after its backends came back, of a second or longer", "0", func(f figures) string { return share(f.since(f.told-f.at+500*time.Millisecond, f.lasts)) }},
		}},
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

// playNode takes the uplink of a node down, without a word.
func playNode(w *world) (f figures, err error) {
	dead := w.nodes[0]
	f = figures{at: w.spans(5 * time.Second), lasts: w.spans(65 * time.Second)}
	f.told = f.at + w.spans(notReadyAfter)
	f.all, err = w.streams("web", 300, f.lasts, event{f.at, func() error { return unplug(dead) }}, event{f.told, func() error {
		for _, s := range w.servers {
			s.gone = s.Node == dead
		}
		w.publish()
		return nil
	}})
	return f, err
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
	f = figures{at: w.spans(5 * time.Second), lasts: w.spans(35 * time.Second)}
	f.all, err = w.streams("web", 1000, f.lasts, event{f.at, func() error { return deaf(w.of("web")[0], syns) }})
	return f, err
}

func playHang(w *world) (f figures, err error) {
	f = figures{at: w.spans(5 * time.Second), told: w.spans(20 * time.Second), lasts: w.spans(30 * time.Second)}
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
	return f, both.Wait()
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
