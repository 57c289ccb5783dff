// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	listenAgain = 5 * time.Second
	readTimeout = 10 * time.Second // of a request's header
	askTime     = 3 * readTimeout  // of a request and its answer
)

// server is one HTTP server of the agent. While its address is taken, perhaps by kube-proxy, it tries again, and the status says
// so: traffic is served without it.
type server struct {
	name    string // "health", "metrics"
	address string
	handler http.Handler
	agent   *daemon
}

// run serves until ctx ends.
func (s server) run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := s.serve(ctx)
		if s.agent.diary.trouble("serve "+s.name, err) {
			s.agent.log.Error("serve http", "server", s.name, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenAgain):
		}
	}
	return nil
}

func (s server) serve(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.address, err)
	}
	s.agent.listens(s.name, listener.Addr().String())
	s.agent.diary.trouble("serve "+s.name, nil)
	return answerOn(ctx, listener, s.handler)
}

// answerOn answers requests until ctx ends, and closes the listener.
func answerOn(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: readTimeout, WriteTimeout: askTime}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { <-ctx.Done(); return server.Close() })
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return group.Wait()
}
