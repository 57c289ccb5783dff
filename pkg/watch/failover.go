// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// Times of a failover.
const (
	answerTime = 3 * time.Second  // for the header of an answer, and for the answer to /readyz
	probeEvery = 10 * time.Second // /readyz of the first server, while another one is asked
	// wellFor is how long the first server must have been ready without a break before it is asked again; each time that it is left
	// within soonAgain after that, twice as long as the time before, up to wellLongest.
	wellFor     = 30 * time.Second
	wellLongest = 10 * time.Minute
	soonAgain   = 10 * time.Minute
)

var (
	errSilent = errors.New("it accepts requests and answers none")
	errBack   = errors.New("the first one is ready again")
)

// failover sends each request to the server that answered last, and to the next one when that cannot serve, or says
// nothing and is not ready. Once the first of them has been ready for some time, it is asked again: watches that are open elsewhere end
// in their own time. Requests that change something are not sent again: who made them may.
type failover struct {
	next    http.RoundTripper
	servers []*url.URL
	log     *slog.Logger

	mu      sync.Mutex
	current int    // of servers
	said    int    // the one that answered last, as far as the log tells
	reason  error  // why another one was left
	login   string // header Authorization of the last request, for /readyz
	// of the first server
	probing  bool          // it is looked after from time to time
	since    time.Time     // since when it has been ready; zero: it is not
	back     time.Time     // when it was last asked again; zero: never
	required time.Duration // how long it must have been ready
}

// RoundTrip is http.RoundTripper's.
func (f *failover) RoundTrip(request *http.Request) (response *http.Response, err error) {
	for range f.servers {
		at := f.asked(request)
		response, err = f.ask(at, request)
		switch {
		case err == nil && f.serves(request.Context(), at, response.StatusCode):
			f.answered(at)
			return response, nil
		case request.Context().Err() != nil: // nobody waits for the answer
			return response, err
		}
		f.leave(at, response, err)
		if err == nil || request.Body != nil {
			return response, err
		}
	}
	return response, err
}

// serves tells an answer, an error of the request included, from a status by which this server, or its proxy, says that it cannot serve
// now. 500 may be either: /readyz decides.
func (f *failover) serves(ctx context.Context, at, status int) bool {
	switch status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return false
	case http.StatusInternalServerError:
		return f.ready(ctx, at) || ctx.Err() != nil
	}
	return true
}

// ask sends a request to one server. If the header of the answer does not come in time, and the server does not say either that it is
// ready, there is no answer: a long list may take its time.
func (f *failover) ask(at int, request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(request.Context())
	var mu sync.Mutex
	arrived := false
	var watchdog *time.Timer
	mu.Lock() // until it is known to itself
	watchdog = time.AfterFunc(answerTime, func() {
		ready := f.ready(ctx, at)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case arrived:
		case ready:
			watchdog.Reset(answerTime)
		default:
			cancel(errSilent)
		}
	})
	mu.Unlock()
	response, err := f.next.RoundTrip(to(f.servers[at], request.WithContext(ctx)))
	mu.Lock()
	arrived = true
	mu.Unlock()
	watchdog.Stop()
	if err != nil {
		if context.Cause(ctx) == errSilent {
			err = errSilent
		}
		cancel(nil)
		return nil, err
	}
	response.Body = &body{response.Body, cancel}
	return response, nil
}

// body ends its request when it is closed.
type body struct {
	io.ReadCloser
	end context.CancelCauseFunc
}

// Close is io.Closer's.
func (b *body) Close() error {
	defer b.end(nil)
	return b.ReadCloser.Close()
}

// ready tells whether a server answers, in time, and not that it is ill.
func (f *failover) ready(ctx context.Context, at int) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	probe, err := http.NewRequestWithContext(ctx, http.MethodGet, f.servers[at].JoinPath("readyz").String(), nil)
	if err != nil {
		return false
	}
	f.mu.Lock()
	if f.login != "" {
		probe.Header.Set("Authorization", f.login)
	}
	f.mu.Unlock()
	response, err := f.next.RoundTrip(probe)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode < http.StatusInternalServerError
}

func to(server *url.URL, request *http.Request) *http.Request {
	sent := request.Clone(request.Context())
	sent.URL.Scheme, sent.URL.Host, sent.Host = server.Scheme, server.Host, ""
	return sent
}

func (f *failover) asked(request *http.Request) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.login = request.Header.Get("Authorization")
	return f.current
}

// leave turns to the next server, unless another request did already.
func (f *failover) leave(at int, response *http.Response, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != at {
		return
	}
	f.current, f.reason = (at+1)%len(f.servers), err
	if err == nil {
		f.reason = errors.New(response.Status)
	}
	if at == 0 {
		f.leftFirst(time.Now())
	}
}

// leftFirst begins to look after the first server.
func (f *failover) leftFirst(now time.Time) {
	switch {
	case f.back.IsZero() || now.Sub(f.back) > soonAgain:
		f.required = wellFor
	default:
		f.required = min(2*f.required, wellLongest)
	}
	f.since = time.Time{}
	if !f.probing {
		f.probing = true
		time.AfterFunc(probeEvery, f.look)
	}
}

// look goes back to the first server once it has been ready for long enough.
func (f *failover) look() {
	ready, now := f.ready(context.Background(), 0), time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.current == 0: // all others failed
		f.probing = false
		return
	case !ready:
		f.since = time.Time{}
	case f.since.IsZero():
		f.since = now
	case now.Sub(f.since) >= f.required:
		f.current, f.back, f.reason, f.probing = 0, now, errBack, false
		return
	}
	time.AfterFunc(probeEvery, f.look)
}

// answered says which server is asked now, if it is another one than before. While none answers there is nothing to say here.
func (f *failover) answered(at int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at != f.current || at == f.said {
		return
	}
	if f.log != nil {
		f.log.Info("asking another API server", "server", f.servers[at].Host, "left", f.servers[f.said].Host, "error", f.reason)
	}
	f.said = at
}

// WrappedRoundTripper lets client-go find the transport below.
func (f *failover) WrappedRoundTripper() http.RoundTripper { return f.next }
