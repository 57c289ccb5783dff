// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
)

// failover sends each request to the server that answered last, and to the next one when that has nothing good to say. Requests
// that change something are not sent again: who made them may.
type failover struct {
	next    http.RoundTripper
	servers []*url.URL
	log     *slog.Logger

	mu      sync.Mutex
	current int   // of servers
	said    int   // the one that answered last, as far as the log tells
	reason  error // why another one was left
}

// RoundTrip is http.RoundTripper's.
func (f *failover) RoundTrip(request *http.Request) (response *http.Response, err error) {
	for range f.servers {
		at := f.asked()
		response, err = f.next.RoundTrip(to(f.servers[at], request))
		switch {
		case err == nil && response.StatusCode < http.StatusInternalServerError:
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

func to(server *url.URL, request *http.Request) *http.Request {
	sent := request.Clone(request.Context())
	sent.URL.Scheme, sent.URL.Host, sent.Host = server.Scheme, server.Host, ""
	return sent
}

func (f *failover) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

// leave turns to the next server, unless another request did so already.
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
