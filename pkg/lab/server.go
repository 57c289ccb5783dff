// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Server answers on one port of a host, over TCP and UDP, on both of its addresses.
//
// Over TCP each line is a request: "who" is answered with "NAME CLIENT LOCAL" (both as address:port), "get SEED LENGTH"
// with that much of the stream, "put SEED LENGTH" is followed by content and answered with "ok" or what was wrong with
// it. A UDP datagram is answered with the same first line as "who" and a copy of the datagram.
type Server struct {
	Name string

	mu      sync.Mutex
	closers map[io.Closer]struct{}
	closed  bool
}

// Serve starts a server named after the host on these addresses, which are its own two if there are none; on a node, it is
// what a pod with hostNetwork is. It ends with the host or by Close.
func (h *Host) Serve(port uint16, addresses ...netip.Addr) (*Server, error) {
	if len(addresses) == 0 {
		addresses = []netip.Addr{h.V4, h.V6}
	}
	s := &Server{Name: h.Name, closers: map[io.Closer]struct{}{}}
	h.keep(s)
	return s, s.listenOn(h.Namespace, port, addresses...)
}

func (s *Server) listenOn(ns *Namespace, port uint16, addresses ...netip.Addr) error {
	return ns.Do(func() error {
		for _, address := range addresses {
			if err := s.listen(netip.AddrPortFrom(address, port)); err != nil {
				return fmt.Errorf("serve on %s port %d: %w", address, port, err)
			}
		}
		return nil
	})
}

// listen opens the sockets in the calling thread's namespace.
func (s *Server) listen(on netip.AddrPort) error {
	config := net.ListenConfig{KeepAlive: -1}
	config.SetMultipathTCP(false)
	tcp, err := config.Listen(context.Background(), "tcp", on.String())
	if err != nil {
		return err
	}
	s.closeLater(tcp)
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(on))
	if err != nil {
		return err
	}
	s.closeLater(udp)
	go s.accept(tcp)
	go s.answerDatagrams(udp, on)
	return nil
}

// closeLater has something closed with the server; what comes too late is closed at once.
func (s *Server) closeLater(c io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return
	}
	s.closers[c] = struct{}{}
}

func (s *Server) drop(c io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.closers, c)
	_ = c.Close()
}

// Close closes the server's sockets, its connections included.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for c := range s.closers {
		errs = append(errs, c.Close())
	}
	clear(s.closers)
	return errors.Join(errs...)
}

func (s *Server) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond) // too many open files, say: there will be some again
			continue
		}
		s.closeLater(conn)
		go func() {
			defer s.drop(conn)
			s.answerLines(conn)
		}()
	}
}

// answerLines serves one connection until its end or its first error.
func (s *Server) answerLines(conn net.Conn) {
	in := bufio.NewReaderSize(conn, 64<<10)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		if err := s.answerLine(conn, in, strings.TrimSpace(line)); err != nil {
			return
		}
	}
}

func (s *Server) answerLine(conn net.Conn, in io.Reader, line string) error {
	var seed uint64
	var length int64
	verb, rest, _ := strings.Cut(line, " ")
	if _, err := fmt.Sscan(rest, &seed, &length); err != nil && verb != "who" {
		return err
	}
	switch verb {
	case "who":
		_, err := fmt.Fprintf(conn, "%s %s %s\n", s.Name, conn.RemoteAddr(), conn.LocalAddr())
		return err
	case "get":
		return NewStream(seed).Send(conn, length)
	case "put":
		answer := "ok"
		if err := NewStream(seed).Check(in, length); err != nil {
			answer = err.Error()
		}
		_, err := fmt.Fprintln(conn, answer)
		return err
	}
	return fmt.Errorf("answer %q: no such request", verb)
}

func (s *Server) answerDatagrams(conn *net.UDPConn, on netip.AddrPort) {
	buffer := make([]byte, 64<<10)
	for {
		n, client, err := conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an earlier answer was refused
		}
		var answer bytes.Buffer
		fmt.Fprintf(&answer, "%s %s %s\n", s.Name, unmap(client), on)
		answer.Write(buffer[:n])
		_, _ = conn.WriteToUDPAddrPort(answer.Bytes(), client)
	}
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
