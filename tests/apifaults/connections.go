// SPDX-License-Identifier: Apache-2.0

package apifaults

import (
	"net"
	"sync"
)

// Listener is a listener whose connections can be reset, or fall silent as if a cable were cut.
type Listener struct {
	net.Listener

	mu    sync.Mutex
	conns map[*conn]bool
}

// Wrap makes one of another.
func Wrap(l net.Listener) *Listener { return &Listener{Listener: l, conns: map[*conn]bool{}} }

// Accept is net.Listener's.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	wrapped := &conn{Conn: c, of: l, silent: make(chan struct{}), closed: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[wrapped] = true
	return wrapped, nil
}

func (l *Listener) each(f func(*conn)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		f(c)
	}
}

// Reset ends all connections with a TCP reset.
func (l *Listener) Reset() {
	l.each(func(c *conn) {
		if tcp, ok := c.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // it is being closed anyway
		}
		_ = c.Conn.Close()
	})
}

// Silence has the connections that are open say and hear nothing any more. New ones work.
func (l *Listener) Silence() {
	l.each(func(c *conn) { c.hush.Do(func() { close(c.silent) }) })
}

type conn struct {
	net.Conn
	of     *Listener
	hush   sync.Once
	silent chan struct{} // closed: as if a cable were cut
	end    sync.Once
	closed chan struct{}
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select {
	case <-c.silent:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c *conn) Write(p []byte) (int, error) {
	select {
	case <-c.silent:
		return len(p), nil
	default:
		return c.Conn.Write(p)
	}
}

func (c *conn) Close() error {
	c.end.Do(func() { close(c.closed) })
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	select {
	case <-c.silent:
		return nil // the other side is not to see a FIN
	default:
		return c.Conn.Close()
	}
}
