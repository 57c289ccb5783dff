// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/nearlb/nearlb/pkg/watch/clientset"
	"github.com/nearlb/nearlb/tests/apifaults"
)

// faulty is a source over an API server that fails when told to.
type faulty struct {
	*testing.T
	*recorder
	api    *apiServer
	faults *apifaults.Server
	wire   *apifaults.Listener
	config *rest.Config
	source Source
	name   string
}

// newFaulty makes an API server over HTTP/2, as they are, with a Service and two Nodes.
func newFaulty(t *testing.T, fault apifaults.Fault, change func(f *faulty)) *faulty {
	f := &faulty{T: t, recorder: newRecorder(), api: newAPIServer(true)}
	f.api.add(servicesPath, apiService("web"))
	f.api.add(slicesPath, apiSlice("web-a", "web", "10.1.0.1"))
	f.api.add(nodesPath, apiNode("n1", "a"))
	f.api.add(nodesPath, apiNode("n2", "a"))
	f.faults = &apifaults.Server{Next: f.api}
	f.faults.Set(fault)
	server := httptest.NewUnstartedServer(f.faults)
	f.wire = apifaults.Wrap(server.Listener)
	server.Listener, server.EnableHTTP2 = f.wire, true
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	f.config = &rest.Config{Host: server.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	if change != nil {
		change(f)
	}
	client, err := clientset.For(f.config)
	must(t, err)
	f.source = Kubernetes(whole{client}, NodeConfig{Name: "n1", ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}, slog.New(f.recorder))
	f.source.Guard(halfFor(grace))
	t.Cleanup(func() { server.CloseClientConnections(); f.wire.Reset(); server.Close() })
	f.run(t, f.source)
	return f
}

func (f *faulty) endpoints() int { return endpointsOf(f.source, "web") }

// start waits for the first lists.
func (f *faulty) start() *faulty {
	f.Helper()
	f.until(f.T, "the first lists", func() bool { return f.synced() > 0 })
	same(f.T, "endpoints", f.endpoints(), 1)
	return f
}

// follow changes the endpoints, and waits until the source knows and has told of it, which comes after.
func (f *faulty) follow(n int) {
	f.Helper()
	told := f.changed("web")
	f.api.set(slicesPath, apiSlice("web-a", "web", addresses(n)...), true)
	f.await(fmt.Sprintf("%d endpoints", n), func() bool { return f.endpoints() == n && f.changed("web") > told })
}

// await waits for what no event tells of.
func (f *faulty) await(what string, is func() bool) {
	f.Helper()
	for end := time.Now().Add(watchdog); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			f.Fatalf("%s does not come; log:\n%s", what, f.log())
		}
	}
}

// said checks the lines of the log so far: each text is in one, in this order, and there are no others.
func (f *faulty) said(texts ...string) {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.lines) != len(texts) {
		f.Errorf("%s: %d lines, want %d with %q:\n%s", f.name, len(f.lines), len(texts), texts, strings.Join(f.lines, "\n"))
		return
	}
	for i, text := range texts {
		if !strings.Contains(f.lines[i], text) {
			f.Errorf("line %d is %q, want %q", i, f.lines[i], text)
		}
	}
}

const (
	outageSaid   = "objects cannot be read from the API server"
	recoverySaid = "objects can be read from the API server again"
)

// Whatever an API server says instead of an answer, what is known stays, it is said once, and it is over soon after. All at the
// same time, as the tries take theirs.
func TestAServerThatFailsIsSaidOnceAndFollowedAgainWhenItWorks(t *testing.T) {
	t.Parallel()
	var all []*faulty
	for name, fault := range map[string]apifaults.Fault{
		"500":            apifaults.Answer(500, "InternalError", 0),
		"503":            apifaults.Answer(503, "ServiceUnavailable", 0),
		"429":            apifaults.Answer(429, "TooManyRequests", 0),
		"401":            apifaults.Answer(401, "Unauthorized", 0),
		"403":            apifaults.Answer(403, "Forbidden", 0),
		"404":            apifaults.Answer(404, "NotFound", 0),
		"truncated JSON": apifaults.Say(`{"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"na`),
		"no JSON":        apifaults.Say("<html>maintenance</html>"),
		"cut answers":    apifaults.Cut(30),
	} {
		f := newFaulty(t, nil, nil).start()
		f.name = name
		f.faults.Set(fault)
		f.api.expire() // so that lists are asked for again; a connection that ends beside them is another outage, if a request is on it
		all = append(all, f)
	}
	for _, f := range all {
		f.until(t, f.name+": the outage", func() bool { return f.logged(outageSaid) > 0 })
	}
	for _, f := range all {
		f.await(f.name+": the next tries", func() bool { return f.faults.Asked() >= 9 })
		if f.source.Health().Error == "" {
			t.Errorf("%s: the source says that it is well", f.name)
		}
		same(t, f.name+": told meanwhile", f.changed("web"), 0)
		f.api.set(slicesPath, apiSlice("web-a", "web", addresses(2)...), false)
		f.faults.Set(nil)
	}
	for _, f := range all {
		f.await(f.name+": what changed meanwhile", func() bool { return f.endpoints() == 2 })
		f.follow(3)
		f.until(t, f.name+": the recovery", func() bool { return f.logged(recoverySaid) > 0 })
		f.said(outageSaid, recoverySaid)
		same(t, f.name+": health", f.source.Health().Error, "")
	}
}

// Some answers look like lists of nothing, and are no lists.
func TestAnAnswerThatLooksLikeAListOfNothingTakesNothingAway(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, nil, nil).start()
	f.faults.Set(apifaults.Say("{}"))
	f.api.compact()
	f.wire.Reset()
	f.await("the lists", func() bool { h := f.source.Health().Held; return h.Services == 1 && h.Nodes == 1 })
	same(t, "endpoints", f.endpoints(), 1)
	f.faults.Set(nil)
	f.await("the end", func() bool { return !f.source.Health().Held.Any() })
	f.await("both turns", func() bool { return f.changed("web") == 2 }) // held, and not any more
	f.follow(2)
}

// A server that asks for patience is given it, and nobody is told.
func TestRetryAfterIsObeyed(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, apifaults.Answer(429, "TooManyRequests", time.Second), nil)
	f.await("requests", func() bool { return f.faults.Asked() >= 4 })
	f.faults.Set(nil)
	f.start()
	f.said()
}

func TestASlowServerIsWaitedFor(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, apifaults.Slowly(2*time.Second), nil).start()
	f.follow(2)
	f.wire.Reset()
	f.follow(3)
	f.said()
}

// Nothing is told before every kind was listed, whichever is late.
func TestPartialFirstListsAreNotBelieved(t *testing.T) {
	for _, late := range []string{servicesPath, slicesPath, nodesPath} {
		t.Run(late, func(t *testing.T) {
			t.Parallel()
			isLate := func(r *http.Request) bool { return r.URL.Path == late }
			f := newFaulty(t, apifaults.Only(isLate, apifaults.Answer(500, "InternalError", 0)), nil)
			f.await("the outage", func() bool { return f.logged(outageSaid) > 0 })
			f.await("the next tries", func() bool { return f.faults.Asked() > 6 })
			same(t, "synced", f.synced(), 0)
			same(t, "told", f.changed("web")+f.nodeChanges(), 0)
			f.faults.Set(nil)
			f.start()
			f.until(t, "the recovery", func() bool { return f.logged(recoverySaid) > 0 })
			f.said(outageSaid, recoverySaid)
		})
	}
}

// A connection that breaks is no outage if the next one works, whether with a reset or in the middle of an event.
func TestAWatchThatBreaksGoesOn(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, apifaults.Only(apifaults.Watches, apifaults.Cut(1500)), nil).start()
	for n := range 6 { // each watch lasts for a few of these
		f.follow(n + 2)
	}
	f.faults.Set(nil)
	f.wire.Reset()
	f.follow(30)
	// a kind whose request met the reset waits before it asks again
	f.await("the end of every outage", func() bool { return f.logged(outageSaid) == f.logged(recoverySaid) })
}

func TestACompactedHistoryIsListedAnewAndNothingDeletedInBetween(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, nil, nil).start()
	f.faults.Set(apifaults.Slowly(200 * time.Millisecond))
	f.api.set(slicesPath, apiSlice("web-a", "web", "10.1.0.1", "10.1.0.2"), false)
	f.api.compact()
	f.wire.Reset()
	n := 1
	f.await("the list", func() bool { n = f.endpoints(); return n != 1 })
	same(t, "endpoints after those of before", n, 2)
	f.follow(3)
	f.said()
}

// Versions that run backwards are of a server that was restored: a watch that went on from where it was would hear nothing.
func TestAServerThatWasRestoredFromABackupIsListedAnew(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, nil, nil).start()
	for n := range 10 {
		f.follow(n + 2)
	}
	f.api.restore(6, slicesPath, apiSlice("web-a", "web", "10.9.0.1", "10.9.0.2"))
	f.wire.Reset()
	f.await("the list", func() bool { return f.endpoints() == 2 })
	f.follow(3)
	f.said()
}

// As it is, and as a server that makes its storage anew does it.
func TestAServerThatLostAllTakesNothingAway(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, nil, nil).start()
	f.api.lose(1, servicesPath, slicesPath, nodesPath)
	f.wire.Reset()
	f.await("the lists", func() bool { h := f.source.Health().Held; return h.Services == 1 && h.Nodes == 1 })
	f.await("the lists of slices", func() bool { return f.logged("suddenly lists far fewer") >= 3 })
	same(t, "endpoints", f.endpoints(), 1)
	f.await("that it is held", func() bool { return f.changed("web") == 1 })
	f.api.add(servicesPath, apiService("web"))
	f.api.add(slicesPath, apiSlice("web-b", "web", "10.1.0.1"))
	f.await("the end of the new slice's predecessor", func() bool { return f.source.Health().Held.Services == 0 && f.changed("web") > 1 })
	same(t, "endpoints", f.endpoints(), 1)
}

func TestEventsThatComeTwiceOrLateChangeNothing(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, nil, nil).start()
	f.follow(2) // version 5
	told := f.changed("web")
	for range 5 {
		f.api.tell(slicesPath, "MODIFIED", apiSlice("web-a", "web", addresses(2)...), 5) // again
		f.api.tell(slicesPath, "ADDED", apiSlice("web-a", "web", addresses(2)...), 5)
		f.api.tell(slicesPath, "MODIFIED", apiSlice("web-a", "web", addresses(1)...), 2) // the past
		f.api.tell(slicesPath, "DELETED", apiSlice("web-a", "web", addresses(1)...), 4)
	}
	f.api.tell(slicesPath, "ADDED", apiSlice("web-b", "web", "10.1.1.1"), 9)
	f.api.tell(slicesPath, "DELETED", apiSlice("web-b", "web", "10.1.1.1"), 10)
	f.api.tell(slicesPath, "MODIFIED", apiSlice("web-b", "web", "10.1.1.1"), 9) // after its deletion
	f.api.tell(slicesPath, "ADDED", apiSlice("web-c", "web", "10.1.1.2"), 12)
	f.api.tell(slicesPath, "ADDED", apiSlice("web-d", "web", "10.1.1.3"), 11) // late, and the first that is heard of it
	f.await("the last of them", func() bool { return f.endpoints() == 4 && f.changed("web")-told >= 4 })
	same(t, "told", f.changed("web")-told, 4)
	f.said()
}

func TestOddBookmarksAreOfNoConsequence(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, nil, nil).start()
	for _, version := range []int{0, 1, 4, 3} {
		f.api.tell(slicesPath, "BOOKMARK", apiSlice("", ""), version)
		f.api.tell(slicesPath, "BOOKMARK", &corev1.Service{}, version)
	}
	f.follow(2)
	f.wire.Reset()
	f.follow(3)
	f.until(t, "all Services", func() bool { return names(f.source) == "default/web" })
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, line := range f.lines {
		if strings.Contains(line, outageSaid) {
			t.Error(line)
		}
	}
}

// A cable that is cut says nothing at all. HTTP/2's pings notice, in 45 seconds unless the environment says otherwise.
func TestAConnectionThatFallsSilentIsNoticed(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "5") // more than a machine keeps a process from answering
	// a client of its own, which reads the environment
	f := newFaulty(t, nil, func(f *faulty) { f.config.ServerName = "silent.example" }).start()
	f.follow(2)
	f.wire.Silence()
	f.follow(3)
	f.said()
}

// The kubelet renews the token of a ServiceAccount in its file, long before the old one ends. The file is read every 50 seconds.
func TestANewTokenIsReadFromItsFile(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/token"
	write := func(token string) { // in one step, as the kubelet does
		must(t, os.WriteFile(file+".new", []byte(token), 0o600))
		must(t, os.Rename(file+".new", file))
	}
	write("first")
	f := newFaulty(t, nil, func(f *faulty) { f.api.token, f.config.BearerTokenFile = "first", file }).start()
	f.api.mu.Lock()
	f.api.token = "second"
	f.api.mu.Unlock()
	f.wire.Reset()
	f.until(t, "the refusal", func() bool { return f.logged(outageSaid) > 0 })
	write("second")
	f.await("the recovery", func() bool { return f.logged(recoverySaid) > 0 })
	f.follow(2)
	f.said(outageSaid, recoverySaid)
}

// A Node that is leaving is known as such from the first list on, though most of a Node is cut off there.
func TestANodeThatIsLeavingIsKnownFromTheFirstList(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, nil, func(f *faulty) {
		leaving := apiNode("n1", "a")
		leaving.Spec.Taints = []corev1.Taint{{Key: taintToBeDeleted, Effect: corev1.TaintEffectNoSchedule}}
		f.api.set(nodesPath, leaving, false)
	}).start()
	same(t, "eligible", f.source.NodeEligible(), false)
}
