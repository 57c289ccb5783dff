// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// backendCounted finds what a backend was counted with by its address.
func (r *rig) backendCounted(address netip.AddrPort) bpf.NearlbBackendCounter {
	r.Helper()
	var total bpf.NearlbBackendCounter
	for id := range r.objects.Backends.MaxEntries() {
		var b bpf.NearlbBackend
		check(r, r.objects.Backends.Lookup(id, &b))
		if netip.AddrFrom16(b.Address.Bytes).Unmap() != address.Addr() || swap(b.Port) != address.Port() || b.State == 0 {
			continue
		}
		var each []bpf.NearlbBackendCounter
		check(r, r.objects.BackendCounters.Lookup(id, &each))
		for _, c := range each {
			total.Connections += c.Connections
			total.PacketsTo += c.PacketsTo
			total.BytesTo += c.BytesTo
			total.PacketsFrom += c.PacketsFrom
			total.BytesFrom += c.BytesFrom
		}
	}
	return total
}

func (r *rig) serviceCounted() bpf.NearlbServiceCounter {
	r.Helper()
	var total bpf.NearlbServiceCounter
	for id := range r.objects.ServiceCounters.MaxEntries() {
		var each []bpf.NearlbServiceCounter
		check(r, r.objects.ServiceCounters.Lookup(id, &each))
		for _, c := range each {
			total.Connections += c.Connections
			total.Rejected += c.Rejected
			total.Dropped += c.Dropped
		}
	}
	return total
}

// Requirement B18 rests on these: bytes by backend, and so by zone.
func TestConnectionsAndBytesAreCountedByBackendAndService(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		in, out := webPackets(w)
		before := r.serviceCounted() // of other worlds' services
		c := r.start(in)
		data, answer := in.with("PA", "some data"), out.reply("PA", "a longer answer to it")
		r.expect(fromPod, data, "translate_established")
		r.expect(toPod, answer, "translate_reply")
		r.expect(toPod, answer, "translate_reply")
		want := bpf.NearlbBackendCounter{
			Connections: 1, PacketsTo: 2, BytesTo: uint64(r.length(in.bytes()) + r.length(data.bytes())), PacketsFrom: 2, BytesFrom: uint64(2 * r.length(answer.bytes())),
		}
		if got := r.backendCounted(c.out.dst); got != want {
			t.Errorf("backend counted %+v, want %+v", got, want)
		}
		before.Connections++
		if got, want := r.serviceCounted(), before; got != want {
			t.Errorf("service counted %+v, want %+v", got, want)
		}
	}, lb.TCP, lb.UDP)
}

func TestRefusalsAreCountedByService(t *testing.T) {
	rows := map[string]struct {
		action lb.Action
		reason lb.Reason
		want   bpf.NearlbServiceCounter
	}{
		"rejected": {lb.Reject, lb.ReasonNoEndpoints, bpf.NearlbServiceCounter{Rejected: 2}},
		"dropped":  {lb.Drop, lb.ReasonNoLocalEndpoints, bpf.NearlbServiceCounter{Dropped: 2}},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			w := world{protocol: lb.UDP}
			r := newRig(t, bpf.Options{})
			r.publish(deny(row.action, row.reason)(w)...)
			for range 2 {
				in, _ := webPackets(w)
				r.try(fromPod, in.bytes())
			}
			if got := r.serviceCounted(); got != row.want {
				t.Errorf("service counted %+v, want %+v", got, row.want)
			}
		})
	}
}

// A connection that is made again is not a new one.
func TestRecoveredFlowsAreNoNewConnections(t *testing.T) {
	w := world{protocol: lb.TCP}
	r := newRig(t, bpf.Options{})
	r.publish(web(w)...)
	in, _ := webPackets(w)
	c := r.start(in)
	r.evict()
	r.expect(fromPod, in.with("A", "x"), "translate_recover")
	if got := r.backendCounted(c.out.dst).Connections; got != 1 {
		t.Errorf("%d connections counted, want 1", got)
	}
}

func TestDropsAndRejectsAreSampled(t *testing.T) {
	for _, w := range through(doors(), []world{{protocol: lb.TCP}}) {
		t.Run(w.String(), func(t *testing.T) { testDropsAndRejectsAreSampled(t, newRig(t, bpf.Options{}).at(w), w) })
	}
}

func testDropsAndRejectsAreSampled(t *testing.T, r *rig, w world) {
	hook := slices.Index(bpf.Hooks(), r.hook(fromPod))
	r.publish(deny(lb.Reject, lb.ReasonNoEndpoints)(w)...)
	reader, err := ringbuf.NewReader(r.objects.Events)
	check(t, err)
	defer reader.Close()
	in, _ := webPackets(w)
	const refusals, eachSecond = 1000, 10 // events_per_second in bpf/lib/config.h, of each processor
	began := time.Now()
	for range refusals {
		r.expect(fromPod, in, "reject_no_endpoints")
	}
	most := eachSecond * ebpf.MustPossibleCPU() * (2 + int(time.Since(began)/time.Second))
	reader.SetDeadline(time.Now())
	n := 0
	for {
		record, err := reader.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		check(t, err)
		e := readEvent(t, record.RawSample)
		if e.Kind != uint32(bpf.NearlbEventKindEVENT_REJECT) || e.Hook != uint32(hook) || bpf.VerdictOf(e.Verdict).Name != "reject_no_endpoints" ||
			netip.AddrFrom16(e.Source.Bytes).Unmap() != in.src.Addr() || swap(e.DestinationPort) != in.dst.Port() {
			t.Fatalf("event %+v", e)
		}
		n++
	}
	if n == 0 || n > most {
		t.Errorf("%d events for %d refusals: want a sample, of %d at most", n, refusals, most)
	}
}

func TestATraceSaysWhatWasDone(t *testing.T) {
	forEachDoor(t, bpf.Options{Trace: true}, func(t *testing.T, r *rig, w world) {
		self := w.decide(service{name: "self", address: at(w.vip(14), 80), tiers: tiersOf(w.tier(8080, 1))})
		r.publish(append(twins(w), self, w.decide(service{name: "none", address: at(w.vip(12), 80), action: lb.Reject, reason: lb.ReasonNoEndpoints}))...)
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		type told struct {
			in      packet
			verdict string
			source  netip.Addr // that the backend sees; zero: no backend
			unknown bool       // no frontend
		}
		rows := []told{
			{in: in, verdict: "translate_balance", source: in.src.Addr()},
			{in: in, verdict: "translate_established", source: in.src.Addr()},
			{in: in.to(at(w.vip(11), 80)), verdict: "translate_balance", source: in.src.Addr()}, // another source port, the same address
			{in: in.to(at(w.vip(12), 80)), verdict: "reject_no_endpoints"},
			{in: in.to(at(w.vip(13), 80)), verdict: "drop_unallocated", unknown: true},
			{in: in.to(at(w.outside(1), 80)), verdict: "pass_not_service", unknown: true},
		}
		side := bpf.NearlbSideIndexSIDE_EXTERNAL
		if w.door == podDoor {
			side = bpf.NearlbSideIndexSIDE_INTERNAL
			rows = append(rows, told{in: in.to(at(w.vip(14), 80)), verdict: "translate_hairpin", source: w.loopback()})
		}
		for _, row := range rows {
			got := r.traced(row.in)
			if name := bpf.VerdictOf(got.Verdict).Name; name != row.verdict {
				t.Errorf("to %s: verdict %s, want %s", row.in.dst, name, row.verdict)
			}
			snat := row.source.IsValid() && row.source != row.in.src.Addr()
			if (got.FrontendFound == 0) != row.unknown || (got.BackendFound != 0) != row.source.IsValid() || (got.Snat != 0) != snat {
				t.Errorf("to %s, %s: %+v", row.in.dst, row.verdict, got)
			}
			if row.source.IsValid() && netip.AddrFrom16(got.Source.Bytes).Unmap() != row.source {
				t.Errorf("to %s, %s: the backend would see %v, want %s", row.in.dst, row.verdict, got.Source, row.source)
			}
			if row.unknown {
				continue
			}
			if netip.AddrFrom16(got.Frontend.Address.Bytes).Unmap() != row.in.dst.Addr() || swap(got.Frontend.Port) != row.in.dst.Port() {
				t.Errorf("to %s: traced frontend %+v", row.in.dst, got.Frontend)
			}
			if row.verdict != "translate_established" && got.Side != uint8(side) {
				t.Errorf("to %s: side %d, want %d", row.in.dst, got.Side, side)
			}
		}
	}, lb.TCP, lb.UDP)
}

// traces are of a pod's packets and of calls.
func traces() bpf.Options {
	return only(bpf.Options{Trace: true}, bpf.NearlbProgFromPod, bpf.NearlbProgFromPodSlow, bpf.NearlbProgSockExplain)
}

// The same in short, for emulated kernels.
func TestATracedPacketIsTold(t *testing.T) {
	r := newRig(t, traces())
	for _, w := range worlds(lb.TCP) {
		r := r.in(t)
		r.publish(webTiers(w, w.tier(8080, 2)))
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		got := r.traced(in)
		if bpf.VerdictOf(got.Verdict).Name != "translate_balance" || got.BackendFound == 0 || netip.AddrFrom16(got.Source.Bytes).Unmap() != in.src.Addr() {
			t.Errorf("in world %s: %+v", w, got)
		}
	}
}

// traced runs one packet and takes what the program wrote down.
func (r *rig) traced(p packet) bpf.NearlbTraceResult {
	r.Helper()
	var result bpf.NearlbTraceResult
	check(r, r.objects.Trace.Put(uint32(0), &result))
	r.try(fromPod, p.bytes())
	check(r, r.objects.Trace.Lookup(uint32(0), &result))
	return result
}

func readEvent(t *testing.T, raw []byte) (e bpf.NearlbEvent) {
	t.Helper()
	if n, err := binary.Decode(raw, binary.NativeEndian, &e); err != nil {
		t.Fatalf("event of %d bytes: %v after %d", len(raw), err, n)
	}
	return e
}
