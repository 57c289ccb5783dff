// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/health"
	"github.com/nearlb/nearlb/pkg/lb"
)

// ask is the status code and the body of one of the health server's answers.
func ask(t *testing.T, a answers, path string) (int, map[string]any) {
	t.Helper()
	answer := httptest.NewRecorder()
	a.handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	var body map[string]any
	if err := json.Unmarshal(answer.Body.Bytes(), &body); err != nil {
		t.Fatalf("%s: %v in %q", path, err, answer.Body)
	}
	if h := answer.Header(); h.Get("Content-Type") != "application/json" || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%s: header %v", path, h)
	}
	return answer.Code, body
}

func TestHealthIsFreshnessAndLivenessLeavesTheNodeOut(t *testing.T) {
	inBubble(t, func(b *bench) {
		eligible := true
		counts := map[string]int{}
		a := answers{progress: b.progress, eligible: func() bool { return eligible }, now: time.Now,
			answered: func(endpoint string, code int) { counts[fmt.Sprint(endpoint, code)]++ }}
		want := func(when string, fresh, listed bool, healthz, livez int) {
			t.Helper()
			now := time.Now().Format(time.RFC3339Nano)
			for path, code := range map[string]int{"/healthz": healthz, "/livez": livez} {
				got, body := ask(t, a, path)
				if got != code || body["healthy"] != fresh || body["currentTime"] != now || (body["lastUpdated"] == now) != (code == http.StatusOK) {
					t.Errorf("%s: %s says %d, %v; want %d", when, path, got, body, code)
				}
				if shown, found := body["nodeEligible"]; found != (path == "/healthz") || found && shown != eligible {
					t.Errorf("%s: %s says %v", when, path, body)
				}
				families, found := body["status"].(map[string]any)
				if found != listed {
					t.Errorf("%s: %s says %v of the families", when, path, body["status"])
				}
				for _, family := range []string{"IPv4", "IPv6"} {
					if of, _ := families[family].(map[string]any); listed && (of["healthy"] != fresh || of["lastUpdated"] == nil || len(of) != 2) {
						t.Errorf("%s: %s says %v of %s", when, path, of, family)
					}
				}
			}
		}
		const ok, ill = http.StatusOK, http.StatusServiceUnavailable
		name := b.source.set(1, 1)
		b.ServiceChanged(name)
		b.after(time.Hour)
		want("before anything was listed", true, false, ok, ok)
		block := make(chan struct{})
		b.tables.block = block
		b.source.set(2, 1)
		b.Synced()
		b.after(staleAfter)
		want("a minute after the first publication began", true, false, ok, ok)
		b.after(time.Second)
		want("while it hangs", false, false, ill, ill)
		close(block)
		b.settle()
		want("when all is published", true, true, ok, ok)
		b.after(time.Hour)
		want("when nothing happened for long", true, true, ok, ok)
		block = make(chan struct{})
		b.tables.block = block
		b.source.set(2, 1)
		b.ServiceChanged(b.source.set(1, 2))
		b.ServiceChanged(serviceName(2))
		b.after(staleAfter)
		want("after a minute", true, true, ok, ok)
		b.after(time.Second)
		want("after more than a minute", false, true, ill, ill)
		close(block)
		b.settle()
		want("when it went on", true, true, ok, ok)
		b.after(time.Second)
		eligible = false
		want("on a node that may not get traffic", true, true, ill, ok)
		if !maps.Equal(counts, map[string]int{"healthz200": 6, "healthz503": 3, "livez200": 7, "livez503": 2}) {
			t.Errorf("answers counted: %v", counts)
		}
	})
}

// A first publication of many Services may take as long as it goes on; a source that hands nothing out holds it up like the kernel.
func TestAFirstPublicationThatGoesOnIsHealthyHoweverLongItTakes(t *testing.T) {
	inBubble(t, func(b *bench) {
		for number := range 5 {
			b.source.set(number, 1)
		}
		block := make(chan struct{})
		b.tables.block = block
		b.Synced()
		for range 5 {
			b.after(staleAfter)
			if b.stale(time.Now()) || b.done() {
				t.Errorf("stale %v, done %v; want an agent at work", b.stale(time.Now()), b.done())
			}
			block <- struct{}{}
		}
		b.settle()
		if !b.done() {
			t.Error("not everything is published")
		}
	})
}

// One change that never gets its turn is a minute too long, however busy the agent is with others.
func TestAChangeThatIsNeverTriedMakesTheAgentIll(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.source.set(1, 1)
		b.Synced()
		b.settle()
		b.mark(serviceName(2), false) // and not put into the queue
		for range 70 {
			b.ServiceChanged(b.source.set(1, 2))
			b.after(time.Second)
		}
		if !b.stale(time.Now()) {
			t.Error("the change of a minute ago does not count")
		}
	})
}

// asked notes what the health check node ports are told.
type asked map[lb.ServiceName]told

type told struct {
	port uint16
	health.Endpoints
	lowered bool
}

func (a asked) Set(name lb.ServiceName, port uint16, e health.Endpoints) {
	a[name] = told{port, e, false}
}
func (a asked) Lower(name lb.ServiceName, port uint16, e health.Endpoints) {
	a[name] = told{port, e, true}
}
func (a asked) Remove(name lb.ServiceName) { delete(a, name) }

// local is a load balancer's Service with traffic policy Local and a ready endpoint on each of two nodes.
func local(number int) lb.Input {
	in := input(number, 2)
	in.Service.Type, in.Service.External, in.Service.HealthCheckPort = lb.TypeLoadBalancer, lb.PolicyLocal, 32000
	return in
}

func TestHealthChecksFollowTheirServices(t *testing.T) {
	inBubble(t, func(b *bench) {
		name := serviceName(1)
		want := func(when string, changed lb.Input, expected asked) {
			t.Helper()
			b.source.put(changed)
			b.ServiceChanged(name)
			b.after(retryLongest)
			if !maps.Equal(b.asked, expected) {
				t.Errorf("%s: %v, want %v", when, b.asked, expected)
			}
		}
		b.Synced()
		b.settle()
		one := health.Endpoints{V4: 1, V6: 1} // a Service of IPv4 alone is asked for on addresses of IPv6, too
		want("with an endpoint here", local(1), asked{name: {32000, one, false}})
		both := local(1)
		both.Service.ClusterIPs = append(both.Service.ClusterIPs, netip.MustParseAddr("fd96::1"))
		want("of two families", both, asked{name: {32000, health.Endpoints{V4: 1}, false}})
		remote := local(1)
		remote.Endpoints = remote.Endpoints[1:]
		want("without one here", remote, asked{name: {32000, health.Endpoints{}, false}})
		b.tables.setFailure(name, errors.New("no"))
		want("when it cannot be published", local(1), asked{name: {32000, one, true}})
		b.tables.setFailure(name, nil)
		want("when it can", local(1), asked{name: {32000, one, false}})
		for what, change := range map[string]func(*lb.Service){
			"another type":   func(s *lb.Service) { s.Type = lb.TypeNodePort },
			"another policy": func(s *lb.Service) { s.External = lb.PolicyCluster },
			"no port":        func(s *lb.Service) { s.HealthCheckPort = 0 },
		} {
			other := local(1)
			change(&other.Service)
			want(what, other, asked{})
			want("as before", local(1), asked{name: {32000, one, false}})
		}
		b.source.remove(name)
		b.ServiceChanged(name)
		b.after(time.Second)
		if len(b.asked) != 0 {
			t.Errorf("without the Service: %v", b.asked)
		}
	})
}
