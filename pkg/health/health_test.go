// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/lb"
)

// bench is servers at work on the loopback addresses of both families.
type bench struct {
	*testing.T
	*Servers
	stale     atomic.Bool
	mu        sync.Mutex
	addresses []netip.Addr
	codes     []int
	client    http.Client
}

var loopbacks = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, addresses: loopbacks}
	b.client.Transport = &http.Transport{DisableKeepAlives: true}
	b.Servers = New(Options{
		Addresses: func() []netip.Addr { b.mu.Lock(); defer b.mu.Unlock(); return b.addresses },
		Fresh:     func() bool { return !b.stale.Load() },
		Answered:  func(code int) { b.mu.Lock(); defer b.mu.Unlock(); b.codes = append(b.codes, code) },
		Changed:   func() {},
		Log:       slog.New(slog.DiscardHandler),
	})
	b.again = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Servers.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return b
}

// port is one that nobody listens on, and that nobody else is given as long as the test runs: a socket that is bound to it and
// does not listen keeps away those that take any port, and nobody who asks for this one.
func (b *bench) port() uint16 {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(err)
	b.Cleanup(func() { unix.Close(fd) })
	must(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	must(unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 0))
	must(unix.Bind(fd, &unix.SockaddrInet6{}))
	at, err := unix.Getsockname(fd)
	must(err)
	return uint16(at.(*unix.SockaddrInet6).Port)
}

// ask is an answer's code, header and body.
func (b *bench) ask(at netip.AddrPort, path string) (int, http.Header, string, error) {
	answer, err := b.client.Get(fmt.Sprintf("http://%v%s", at, path))
	if err != nil {
		return 0, nil, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, answer.Header, string(text), err
}

// await polls until the condition holds.
func (b *bench) await(what string, condition func() bool) {
	b.Helper()
	for end := time.Now().Add(2 * time.Minute); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("%s: never; rows are %+v", what, b.Rows())
		}
	}
}

func (b *bench) listening(port uint16, addresses ...netip.Addr) {
	b.Helper()
	b.await(fmt.Sprintf("port %d listens on %v", port, addresses), func() bool {
		got := []netip.Addr{}
		for _, row := range b.Rows() {
			for _, at := range row.Listen {
				if at.Port() == port {
					got = append(got, at.Addr())
				}
			}
		}
		return slices.Equal(got, addresses)
	})
}

func named(name string) lb.ServiceName { return lb.ServiceName{Namespace: "default", Name: name} }

func TestAPortSaysHowManyEndpointsTheNodeHas(t *testing.T) {
	b := newBench(t)
	port := b.port()
	both := func(n int) Endpoints { return Endpoints{n, n} }
	want := func(when string, code, endpoints int, healthy bool, on ...netip.Addr) {
		t.Helper()
		for _, a := range on {
			for _, path := range []string{"/", "/healthz", "/any/path?at=all"} {
				got, header, text, err := b.ask(netip.AddrPortFrom(a, port), path)
				if err != nil {
					t.Fatal(err)
				}
				var body map[string]any
				if err := json.Unmarshal([]byte(text), &body); err != nil {
					t.Fatalf("%v in %q", err, text)
				}
				of, _ := body["service"].(map[string]any)
				if got != code || of["namespace"] != "default" || of["name"] != "web" || body["localEndpoints"] != float64(endpoints) ||
					body["serviceProxyHealthy"] != healthy || len(body) != 3 || len(of) != 2 {
					t.Errorf("%s, %v%s: %d %s; want %d, %d endpoints, healthy %v", when, a, path, got, text, code, endpoints, healthy)
				}
				if header.Get("X-Load-Balancing-Endpoint-Weight") != fmt.Sprint(endpoints) || header.Get("Content-Type") != "application/json" ||
					header.Get("X-Content-Type-Options") != "nosniff" {
					t.Errorf("%s: header %v", when, header)
				}
			}
		}
	}
	b.Set(named("web"), port, Endpoints{})
	b.listening(port, loopbacks...)
	want("without endpoints", http.StatusServiceUnavailable, 0, true, loopbacks...)
	b.Set(named("web"), port, both(2))
	want("with two", http.StatusOK, 2, true, loopbacks...)
	b.stale.Store(true)
	want("when changes are not published", http.StatusServiceUnavailable, 2, false, loopbacks...)
	b.stale.Store(false)
	b.Lower(named("web"), port, both(3))
	want("when more could not be published", http.StatusOK, 2, true, loopbacks...)
	b.Lower(named("web"), port, both(0))
	want("when they went and it could not be published", http.StatusServiceUnavailable, 0, true, loopbacks...)
	b.Set(named("web"), port, Endpoints{V4: 3})
	want("on the family with endpoints", http.StatusOK, 3, true, loopbacks[0])
	want("on the family without", http.StatusServiceUnavailable, 0, true, loopbacks[1])
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.codes); n != 36 || b.codes[0] != http.StatusServiceUnavailable || b.codes[6] != http.StatusOK {
		t.Errorf("told of %d answers: %v", n, b.codes)
	}
}

func TestAPortIsClosedWhenItsServiceGoesOrTakesAnother(t *testing.T) {
	b := newBench(t)
	one, two := b.port(), b.port()
	b.Set(named("web"), one, Endpoints{1, 1})
	b.listening(one, loopbacks...)
	held, err := net.Dial("tcp", netip.AddrPortFrom(loopbacks[0], one).String())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	b.Set(named("web"), two, Endpoints{1, 1})
	b.listening(two, loopbacks...)
	b.listening(one)
	if _, err := held.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("a connection of the closed port gives %v", err)
	}
	b.Remove(named("web"))
	b.await("nothing listens", func() bool {
		_, _, _, err := b.ask(netip.AddrPortFrom(loopbacks[1], two), "/")
		return err != nil
	})
	if rows := b.Rows(); len(rows) != 0 {
		t.Errorf("rows are %+v", rows)
	}
}

func TestServersFollowTheNodesAddresses(t *testing.T) {
	b := newBench(t)
	port := b.port()
	set := func(addresses ...netip.Addr) {
		b.mu.Lock()
		b.addresses = addresses
		b.mu.Unlock()
		b.Look()
	}
	set()
	b.Set(named("web"), port, Endpoints{1, 1})
	b.listening(port)
	for _, addresses := range [][]netip.Addr{loopbacks[:1], loopbacks, loopbacks[1:], {},
		{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}} { // the last are on no device, and wait there
		set(addresses...)
		b.listening(port, addresses...)
		if problems := b.Problems(); len(problems) != 0 {
			t.Errorf("on %v: %v", addresses, problems)
		}
	}
}

func TestAPortThatIsTakenIsAProblemUntilItIsFree(t *testing.T) {
	b := newBench(t)
	port := b.port()
	other, err := net.Listen("tcp", netip.AddrPortFrom(loopbacks[1], port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	b.Set(named("web"), port, Endpoints{1, 1})
	b.listening(port, loopbacks[0])
	b.await("a problem", func() bool { return len(b.Problems()) == 1 })
	p := b.Problems()[0]
	if p.Object != "Service default/web" || p.Field != "spec.healthCheckNodePort" || !strings.Contains(p.Message, fmt.Sprintf("[::1]:%d", port)) {
		t.Errorf("problem is %+v", p)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	b.listening(port, loopbacks...)
	if problems := b.Problems(); len(problems) != 0 {
		t.Errorf("problems are %v", problems)
	}
}

func TestOfTwoServicesWithOnePortTheFirstByNameIsAnsweredFor(t *testing.T) {
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		t.Run(strings.Join(order, " then "), func(t *testing.T) {
			b := newBench(t)
			port := b.port()
			for _, name := range order {
				b.Set(named(name), port, Endpoints{1, 1})
			}
			answers := func(name string) func() bool {
				return func() bool {
					_, _, text, err := b.ask(netip.AddrPortFrom(loopbacks[0], port), "/")
					return err == nil && strings.Contains(text, fmt.Sprintf("%q", name))
				}
			}
			b.await("a answers", answers("a"))
			problems := b.Problems()
			if len(problems) != 1 || problems[0].Object != "Service default/b" || !strings.Contains(problems[0].Message, "default/a") {
				t.Errorf("problems are %v", problems)
			}
			b.Remove(named("a"))
			b.await("b answers", answers("b"))
			if problems := b.Problems(); len(problems) != 0 {
				t.Errorf("problems are %v", problems)
			}
		})
	}
}
