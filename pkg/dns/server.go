// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"time"

	wire "github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
)

// What clients may take of the server: connections at a time (share), how long one may be idle, and how many queries it may have
// answered on one.
const (
	maxConnections = 1024
	idleTime       = 10 * time.Second
	maxPipelined   = 1000
	exchangeTime   = 6 * time.Second // for one query, upstreams included
)

// Server answers on one address and port, by UDP and TCP.
type Server struct {
	Responder *Responder
	Address   string       // ADDR:PORT; port 0: one that is free for both
	Log       *slog.Logger // nil: silent
	Ready     func(address string)
	NotFrom   []int // ifindexes of devices whose packets the sockets do not get
}

// Run answers until ctx ends, which is no error. Each processor has a UDP socket of its own.
func (s *Server) Run(ctx context.Context) error {
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	all, err := s.listen(ctx)
	if err != nil {
		return fmt.Errorf("serve names on %s: %w", s.Address, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	handler := wire.HandlerFunc(func(w wire.ResponseWriter, query *wire.Msg) { s.handle(ctx, w, query) })
	recent := newRecent(s.Responder.view)
	servers := []*wire.Server{{Listener: &streams{Listener: all.stream, share: &share{most: maxConnections}}}}
	for _, p := range all.packets {
		if conn, ok := p.(*net.UDPConn); ok && !conn.LocalAddr().(*net.UDPAddr).IP.IsUnspecified() {
			answers := &datagrams{Server: s, conn: conn, recent: recent}
			group.Go(func() error { return answers.run(ctx) })
			continue
		}
		servers = append(servers, &wire.Server{PacketConn: p}) // which answers from the address that was asked
	}
	for _, server := range servers {
		server.Handler, server.MsgAcceptFunc, server.MaxTCPQueries = handler, accept, maxPipelined
		server.UDPSize = wire.DefaultMsgSize
		server.IdleTimeout = func() time.Duration { return idleTime }
		group.Go(func() error {
			err := server.ActivateAndServe()
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		for _, server := range servers {
			_ = server.ShutdownContext(ctx) // connections end with the answer under way; the error of one that has not begun says nothing
		}
		all.close()
		return nil
	})
	if s.Ready != nil {
		s.Ready(all.stream.Addr().String())
	}
	return group.Wait()
}

// accept lets a message without a question through, which is answered with SERVFAIL as CoreDNS does; the rest is the library's rule.
func accept(h wire.Header) wire.MsgAcceptAction {
	if h.Qdcount == 0 {
		h.Qdcount = 1
	}
	return wire.DefaultMsgAcceptFunc(h)
}

func (s *Server) handle(ctx context.Context, w wire.ResponseWriter, query *wire.Msg) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTime)
	defer cancel()
	data, err := s.pack(query, s.Responder.Serve(ctx, query, clientOf(w.RemoteAddr())), nil)
	if err != nil {
		return
	}
	if _, err := w.Write(data); err != nil {
		s.Log.Debug("answer a query", "address", w.RemoteAddr().String(), "error", err)
	}
}

// pack writes an answer, into room if that is enough. An object or an upstream may say what no message can: that is a failure.
func (s *Server) pack(query, reply *wire.Msg, room []byte) ([]byte, error) {
	data, err := reply.PackBuffer(room)
	if err != nil {
		s.Log.Debug("answer that is no message", "error", err)
		data, err = new(wire.Msg).SetRcode(query, wire.RcodeServerFailure).PackBuffer(room)
	}
	return data, err
}

// clientOf takes the other end of a socket.
func clientOf(end net.Addr) Client {
	var from Client
	switch end := end.(type) {
	case *net.UDPAddr:
		from.Address = end.AddrPort().Addr()
	case *net.TCPAddr:
		from.Address, from.TCP = end.AddrPort().Addr(), true
	}
	from.Address = from.Address.Unmap()
	from.IP6 = from.Address.Is6()
	return from
}

// listeners are the sockets that a server listens on: all have one port.
type listeners struct {
	stream  net.Listener
	packets []net.PacketConn
}

func (l *listeners) close() {
	if l.stream != nil {
		_ = l.stream.Close()
	}
	for _, p := range l.packets {
		_ = p.Close()
	}
}

// listenTries is how often a free port is looked for that UDP has free, too.
const listenTries = 20

func (s *Server) listen(ctx context.Context) (*listeners, error) {
	host, port, err := net.SplitHostPort(s.Address)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		all, err := s.listenOn(ctx, host, port)
		if err == nil || port != "0" || try == listenTries {
			return all, err
		}
	}
}

func (s *Server) listenOn(ctx context.Context, host, port string) (*listeners, error) {
	all := &listeners{}
	var err error
	stream := net.ListenConfig{Control: s.control(false)} // not shared: who starts a second server on the port is told
	stream.SetMultipathTCP(false)
	if all.stream, err = stream.Listen(ctx, "tcp", net.JoinHostPort(host, port)); err != nil {
		return nil, err
	}
	all.stream = endFirst(all.stream)
	port = strconv.Itoa(all.stream.Addr().(*net.TCPAddr).Port)
	datagrams := net.ListenConfig{Control: s.control(true)}
	for range runtime.GOMAXPROCS(0) {
		p, err := datagrams.ListenPacket(ctx, "udp", net.JoinHostPort(host, port))
		if err != nil {
			all.close()
			return nil, err
		}
		all.packets = append(all.packets, p)
	}
	return all, nil
}
