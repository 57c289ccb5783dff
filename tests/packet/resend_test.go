// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// retrying is web whose clients are not told that a backend refused them.
func retrying(d lb.Decision) lb.Decision { d.RetryRefused = true; return d }

// forgetSYNs has no SYN be kept: in all worlds the same client sends the same.
func (r *rig) forgetSYNs() {
	r.Helper()
	for i := range r.objects.KeptSyns.MaxEntries() {
		check(r, r.objects.KeptSyns.Put(i, bpf.NearlbKeptSyn{}))
	}
}

// becomes wants a packet to become another one, which comes in once more.
func (r *rig) becomes(in, want packet) {
	r.Helper()
	frame := in.bytes()
	if r.door == layer3Door {
		frame = slices.Concat(frame[:ethernetHeader], bare(frame))
	}
	got, err := r.run(toPod, frame)
	check(r, err)
	skip := 0
	if r.door == layer3Door { // no Ethernet header is there, nor kept
		skip = ethernetHeader
	}
	if got.verdict != "translate_refused" || got.action != actRedirect || !bytes.Equal(got.frame[skip:], want.bytes()[skip:]) {
		r.Fatalf("verdict %s, action %d, packet out (-want +got)\n%s", got.verdict, got.action, cmp.Diff(show(want.bytes()), show(got.frame)))
	}
}

// A closed port of a backend is not told to the client: what leaves is its SYN, byte by byte as it came, and that goes to the next backend,
// three times; the fourth refusal is the client's to know.
func TestARefusalBecomesTheSYNForTheNextBackend(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.forgetSYNs()
		r.publish(retrying(webTiers(w, w.tier(8080, 2, 3, 4, 5, 6, 7))))
		c := r.open(w, 41000)
		tried := []netip.AddrPort{c.out.dst}
		for range 3 {
			r.becomes(c.out.reply("RA", ""), c.in)
			c = c.again(r, 0, "translate_retry")
			if slices.Contains(tried, c.out.dst) {
				t.Errorf("%s once more after %v", c.out.dst, tried)
			}
			tried = append(tried, c.out.dst)
		}
		c.refused(r)

		in := w.packet(at(w.pod(1), 41001), at(w.vip(10), 80))
		in.more = 36 // the longest TCP header
		c = r.start(in)
		r.becomes(c.out.reply("RA", ""), c.in)
		c.again(r, 0, "translate_retry").connects(r)
	}, lb.TCP)
}

// What else a client has to know: a reset of a Service that did not ask for this, of a connection that was answered before, and one that
// acknowledges another SYN; and a SYN with data, which is not kept.
func TestARefusalThatIsTheClientsToKnowReachesIt(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3)))
		r.open(w, 41000).refused(r)
		r.publish(retrying(webTiers(w, w.tier(8080, 2, 3))))
		c := r.open(w, 41001)
		forged := c.out.reply("RA", "")
		forged.ack++
		r.expect(toPod, forged, "translate_reply")
		c = r.open(w, 41002)
		r.expect(toPod, c.out.reply("SA", ""), "translate_reply")
		r.expect(toPod, c.out.reply("RA", ""), "translate_reply")
		with := w.packet(at(w.pod(1), 41003), at(w.vip(10), 80))
		with.payload = []byte("data")
		r.start(with).refused(r)
	}, lb.TCP)
}

// Without another backend the same one is asked four times: its port may open meanwhile.
func TestARefusalOfTheOnlyBackendReachesTheClientAtLast(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.forgetSYNs()
		r.publish(retrying(webTiers(w, w.tier(8080, 2))))
		c := r.open(w, 41000)
		for range 3 {
			r.becomes(c.out.reply("RA", ""), c.in)
			c.again(r, 0, "translate_balance")
		}
		c.refused(r)
		c.in.seq++ // the next connection from that port
		c.out.seq++
		c.again(r, 0, "translate_balance")
		r.becomes(c.out.reply("RA", ""), c.in)
	}, lb.TCP)
}

// A client off the node whose backends are on other nodes: they see another source, and refuse that.
func TestARefusalThroughSNATBecomesTheSYN(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.forgetSYNs()
		s.publish(retrying(far(w, 2, 3)))
		c := s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
		got, err := s.run(fromPod, c.out.reply("RA", "").bytes())
		check(s, err)
		if got.verdict != "translate_refused" || got.action != actRedirect || !bytes.Equal(got.frame, c.in.bytes()) {
			s.Fatalf("verdict %s, action %d, packet out (-want +got)\n%s", got.verdict, got.action, cmp.Diff(show(c.in.bytes()), show(got.frame)))
		}
		next := s.remote(c.in, "translate_retry")
		if next.out.dst == c.out.dst {
			s.Errorf("to %s again", next.out.dst)
		}
		s.goesOn(next, "translate_established")
	}, lb.TCP)
}
