// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/nearlb/nearlb/pkg/ui"
)

const (
	listenAgain = 5 * time.Second
	askTime     = 30 * time.Second // of a request and its answer
)

// server is one HTTP server of the agent. While its address is taken, perhaps by kube-proxy, it tries again, and the status says
// so: traffic is served without it.
type server struct {
	name    string // "health", "metrics", "people"
	listen  func() (net.Listener, error)
	handler http.Handler
	agent   *daemon
}

// onTCP listens at an address, which the status tells.
func (d *daemon) onTCP(name, address string) func() (net.Listener, error) {
	return func() (net.Listener, error) {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", address, err)
		}
		d.listens(name, listener.Addr().String())
		return listener, nil
	}
}

// run serves until ctx ends.
func (s server) run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := s.serve(ctx)
		if s.agent.diary.trouble("serve "+s.name, err) {
			s.agent.log.Error("serve http", "server", s.name, "error", err)
		}
		pause(ctx, listenAgain)
	}
	return nil
}

func (s server) serve(ctx context.Context) error {
	listener, err := s.listen()
	if err != nil {
		return err
	}
	s.agent.diary.trouble("serve "+s.name, nil)
	return ui.Serve(ctx, listener, s.handler, askTime)
}
