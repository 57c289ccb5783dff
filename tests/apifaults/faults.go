// SPDX-License-Identifier: Apache-2.0

// Package apifaults stands in front of an API server, a real one behind a reverse proxy or a test's own, and makes it fail.
package apifaults

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Fault answers a request in the place of next, or has next do it in some odd way.
type Fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

// Server passes requests on to Next, or to the fault that it has.
type Server struct {
	Next http.Handler

	mu    sync.Mutex
	fault Fault
	asked int
}

// Set has new requests meet a fault; nil: none. Requests that are being answered go on.
func (s *Server) Set(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault, s.asked = f, 0
}

// Asked is how many requests came since the last Set.
func (s *Server) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// ServeHTTP is http.Handler's.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked++
	fault := s.fault
	s.mu.Unlock()
	if fault == nil {
		s.Next.ServeHTTP(w, r)
		return
	}
	fault(w, r, s.Next)
}

// Answer refuses with a status, as an API server does. after, if above zero, is the header Retry-After.
func Answer(code int, reason string, after time.Duration) Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/json")
		if after > 0 {
			w.Header().Set("Retry-After", fmt.Sprint(int(after.Seconds())))
		}
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "injected", "reason": %q, "code": %d}`, reason, code)
	}
}

// Say answers every request with a text, which claims to be JSON.
func Say(text string) Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, text)
	}
}

// Slowly lets a request wait before it is passed on.
func Slowly(d time.Duration) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		select {
		case <-r.Context().Done():
		case <-time.After(d):
			next.ServeHTTP(w, r)
		}
	}
}

// Hang never answers.
func Hang(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }

// Cut breaks the connection, or with HTTP/2 the stream, after so many bytes of the answer.
func Cut(after int) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(&cut{ResponseWriter: w, left: after}, r)
	}
}

type cut struct {
	http.ResponseWriter
	left int
}

func (c *cut) Write(p []byte) (int, error) {
	if len(p) <= c.left {
		c.left -= len(p)
		return c.ResponseWriter.Write(p)
	}
	_, _ = c.ResponseWriter.Write(p[:c.left])
	c.Flush()
	panic(http.ErrAbortHandler)
}

// Flush is http.Flusher's, without which a watch says nothing.
func (c *cut) Flush() { c.ResponseWriter.(http.Flusher).Flush() }

// Only has the fault for those requests for which it is said to be.
func Only(of func(*http.Request) bool, f Fault) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if of(r) {
			f(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// Watches tells a watch from a list.
func Watches(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }
