// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// sticky is a service with session affinity and the given backends.
func (w world) sticky(port string, number uint16, states map[netip.AddrPort]lb.State, pods ...int) service {
	return service{
		name: "web", port: port, address: at(w.vip(10), number), affinity: 3 * time.Hour,
		tiers: tiersOf(w.tier(8080, pods...)), states: states,
	}
}

// clientOf connects from a port of a pod.
func (w world) clientOf(r *rig, pod int, port, service uint16) (verdict string, backend netip.AddrPort) {
	r.Helper()
	got, out := r.pick(w.packet(at(w.pod(pod), port), at(w.vip(10), service)))
	return got.verdict, out.dst
}

func TestAffinityKeepsAClientOnItsBackend(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(w.decide(w.sticky("", 80, nil, 2)))
		if verdict, backend := w.clientOf(r, 1, 41000, 80); verdict != "translate_balance" || backend != at(w.pod(2), 8080) {
			t.Fatalf("first connection: %s to %s", verdict, backend)
		}
		// Many more backends: Maglev would send most clients elsewhere.
		r.publish(w.decide(w.sticky("", 80, nil, 2, 3, 4, 5, 6, 7, 8, 9)))
		for port := range uint16(20) {
			if verdict, backend := w.clientOf(r, 1, 41001+port, 80); verdict != "translate_affinity" || backend != at(w.pod(2), 8080) {
				t.Fatalf("later connection: %s to %s", verdict, backend)
			}
		}
		seen := map[netip.AddrPort]bool{}
		for pod := range 20 {
			verdict, backend := w.clientOf(r, 20+pod, 41000, 80)
			if verdict != "translate_balance" {
				t.Errorf("another client: %s", verdict)
			}
			seen[backend] = true
		}
		if len(seen) < 3 {
			t.Errorf("20 clients went to %d backends of 8", len(seen))
		}
	}, lb.TCP, lb.UDP)
}

// A client whose time is over is a new one: kube-proxy's rules pick for it by chance then, and Kubernetes' own tests wait until it comes to
// another backend. By its address alone it would come back for ever. One that was forgotten before its time comes back by its address.
func TestAClientWhoseTimeIsOverMayComeToAnotherBackend(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(w.decide(w.sticky("", 80, nil, 2, 3, 4, 5)))
		seen, forgotten := map[netip.AddrPort]bool{}, map[netip.AddrPort]bool{}
		for port := range uint16(24) {
			verdict, backend := w.clientOf(r, 1, 41000+port, 80)
			if verdict != "translate_balance" {
				t.Fatalf("connection %d: %s", port, verdict)
			}
			seen[backend] = true
			if verdict, again := w.clientOf(r, 1, 42000+port, 80); verdict != "translate_affinity" || again != backend {
				t.Errorf("connection %d: %s to %s, want %s again", port, verdict, again, backend)
			}
			r.ageAffinity(3*time.Hour + time.Second)
		}
		if len(seen) < 2 {
			t.Errorf("24 times a client's time was over, and each time it came to %v", seen)
		}
		for port := range uint16(24) {
			r.forgetAffinity()
			_, backend := w.clientOf(r, 1, 43000+port, 80)
			forgotten[backend] = true
		}
		if len(forgotten) != 1 {
			t.Errorf("24 times a client was forgotten, and it came to %v", forgotten)
		}
	}, lb.TCP, lb.UDP)
}

func TestAffinityEnds(t *testing.T) {
	quiet := func(w world) map[netip.AddrPort]lb.State {
		return map[netip.AddrPort]lb.State{at(w.pod(2), 8080): lb.Quiet}
	}
	ends := map[string]func(*rig, world){
		"when its time is over": func(r *rig, w world) {
			r.ageAffinity(3*time.Hour + time.Second)
			if verdict, _ := w.clientOf(r, 1, 41001, 80); verdict != "translate_balance" {
				r.Errorf("after the timeout: %s", verdict)
			}
		},
		"not before": func(r *rig, w world) {
			r.ageAffinity(3*time.Hour - time.Minute)
			if verdict, _ := w.clientOf(r, 1, 41001, 80); verdict != "translate_affinity" {
				r.Errorf("a minute before the timeout: %s", verdict)
			}
			r.ageAffinity(3*time.Hour - time.Minute)
			if verdict, _ := w.clientOf(r, 1, 41002, 80); verdict != "translate_affinity" {
				r.Errorf("each connection starts the time anew: %s", verdict)
			}
		},
		"not where another processor has read a later clock": func(r *rig, w world) {
			r.ageAffinity(-time.Minute)
			if verdict, _ := w.clientOf(r, 1, 41001, 80); verdict != "translate_affinity" {
				r.Errorf("used a minute after now: %s", verdict)
			}
		},
		"when the backend is not serving": func(r *rig, w world) {
			r.publish(w.decide(w.sticky("", 80, quiet(w), 2, 3)))
			if verdict, backend := w.clientOf(r, 1, 41001, 80); verdict != "translate_balance" || backend != at(w.pod(3), 8080) {
				r.Errorf("backend not serving: %s to %s", verdict, backend)
			}
			if verdict, backend := w.clientOf(r, 1, 41002, 80); verdict != "translate_affinity" || backend != at(w.pod(3), 8080) {
				r.Errorf("the new backend is remembered: %s to %s", verdict, backend)
			}
		},
		"when the backend is in no tier any more": func(r *rig, w world) {
			s := w.sticky("", 80, nil, 3)
			s.extra = w.tier(8080, 2)
			r.publish(w.decide(s))
			if verdict, backend := w.clientOf(r, 1, 41001, 80); verdict != "translate_balance" || backend != at(w.pod(3), 8080) {
				r.Errorf("backend out of the list: %s to %s", verdict, backend)
			}
		},
		"at another port of the service (#103000)": func(r *rig, w world) {
			r.publish(w.decide(w.sticky("", 80, nil, 2), w.sticky("admin", 81, nil, 3)))
			if verdict, _ := w.clientOf(r, 1, 41001, 81); verdict != "translate_balance" {
				r.Errorf("other service port: %s", verdict)
			}
			if verdict, _ := w.clientOf(r, 1, 41002, 80); verdict != "translate_affinity" {
				r.Errorf("this service port: %s", verdict)
			}
		},
		"when the service has none any more": func(r *rig, w world) {
			s := w.sticky("", 80, nil, 2, 3)
			s.affinity = 0
			r.publish(w.decide(s))
			if verdict, _ := w.clientOf(r, 1, 41001, 80); verdict != "translate_balance" {
				r.Errorf("affinity None: %s", verdict)
			}
		},
	}
	r := newRig(t, bpf.Options{})
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			for _, w := range everywhere(lb.TCP, lb.UDP) {
				r := r.in(t).at(w)
				r.publish(w.decide(w.sticky("", 80, nil, 2)))
				w.clientOf(r, 1, 41000, 80)
				end(r, w)
			}
		})
	}
}

// ageAffinity makes every entry of the affinity table older.
func (r *rig) ageAffinity(by time.Duration) {
	r.Helper()
	var key bpf.NearlbAffinityKey
	var value bpf.NearlbAffinityValue
	aged := map[bpf.NearlbAffinityKey]bpf.NearlbAffinityValue{}
	for entries := r.objects.Affinity.Iterate(); entries.Next(&key, &value); {
		value.Touched -= uint64(by)
		aged[key] = value
	}
	for key, value := range aged {
		check(r, r.objects.Affinity.Put(&key, &value))
	}
}

func (r *rig) forgetAffinity() {
	r.Helper()
	var key bpf.NearlbAffinityKey
	var value bpf.NearlbAffinityValue
	var all []bpf.NearlbAffinityKey
	for entries := r.objects.Affinity.Iterate(); entries.Next(&key, &value); {
		all = append(all, key)
	}
	for _, key := range all {
		check(r, r.objects.Affinity.Delete(&key))
	}
}

// A connection that affinity sent where Maglev would not is made again by affinity, too, though its client's time is over.
func TestALostFlowIsMadeAgainByAffinity(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(w.decide(w.sticky("", 80, nil, 2)))
		w.clientOf(r, 1, 41000, 80)
		r.publish(w.decide(w.sticky("", 80, nil, 2, 3, 4, 5, 6, 7, 8, 9)))
		r.evict()
		if w.protocol == lb.TCP { // a datagram may be the first of another conversation
			r.ageAffinity(4 * time.Hour)
		}
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80)).with("A", "x")
		verdict := map[lb.Protocol]string{lb.TCP: "translate_recover", lb.UDP: "translate_affinity"}[w.protocol]
		step{hook: fromPod, in: in, verdict: verdict, out: became(in.to(at(w.pod(2), 8080)))}.play(r, 1)
	}, lb.TCP, lb.UDP)
}
