// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// Serve answers HTTP requests until ctx ends, and closes the listener: those for the page, and those to the agent's other servers. An answer
// may take so long from its request on; 0: as long as it does.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, answer time.Duration) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: answer}
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
