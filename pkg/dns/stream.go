// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net"
	"sync"
	"time"
)

// writeTime is how long a client may take to make room for an answer by TCP.
const writeTime = 2 * time.Second

// streams is a listener whose clients share a number of connections. One that is too many is closed at once: a client that is told
// can ask somebody else.
type streams struct {
	net.Listener
	share *share
}

// Accept waits for a connection that there is a place for.
func (s *streams) Accept() (net.Conn, error) {
	for {
		conn, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(conn.RemoteAddr()).Address
		if s.share.take(client) {
			return &stream{Conn: conn, leave: sync.OnceFunc(func() { s.share.give(client) })}, nil
		}
		_ = conn.Close()
	}
}

// stream is a connection whose writes end in time, which the library does not see to.
type stream struct {
	net.Conn
	leave func()
}

// Write closes the connection if it fails: nobody knows how much of the answer was sent.
func (s *stream) Write(data []byte) (int, error) {
	err := s.SetWriteDeadline(time.Now().Add(writeTime))
	n := 0
	if err == nil {
		n, err = s.Conn.Write(data)
	}
	if err != nil {
		_ = s.Close()
	}
	return n, err
}

// Close gives the place back.
func (s *stream) Close() error {
	defer s.leave()
	return s.Conn.Close()
}
