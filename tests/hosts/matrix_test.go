// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Every client, frontend, place of the backend, protocol and family: the right server answers, sees the right client, and
// the client believes to speak with the frontend.
func checkMatrix(t *testing.T, s *stage) {
	backends := map[*lab.Pod]*service{s.near: s.next(), s.far: s.next()}
	for backend, of := range backends {
		s.serve(of, ready(backend)...)
	}
	for backend, of := range backends {
		for _, client := range s.clients() {
			for _, kind := range frontends() {
				for _, w := range ways() {
					name := fmt.Sprintf("%s reaches a %s backend by %s over %s", client, backend, kind, w)
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						s.in(t).checkCell(client, backend, s.by(of, kind).address(w.six), w)
					})
				}
			}
		}
	}
}

func (s *stage) checkCell(client host, backend *lab.Pod, to netip.AddrPort, w way) {
	s.t.Helper()
	conn, err := client.Dial(context.Background(), w.network, to, lab.DialOptions{LocalPort: s.port()})
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	if conn.Remote() != to {
		s.t.Errorf("the client's peer is %s, want %s", conn.Remote(), to)
	}
	for range 2 {
		s.checkAnswer(client, conn, backend)
	}
	if w.network == "udp" {
		if from, answer := exchangeUnconnected(s.t, client, to, 0); from != to || answer.Server != backend.Name {
			s.t.Errorf("an unconnected socket asks %s and is answered by %s from %s", to, answer.Server, from)
		}
	}
}

// checkAnswer asks over a connection and compares who answers, on what address, and whom it sees.
func (s *stage) checkAnswer(client host, conn *lab.Conn, backend *lab.Pod) {
	s.t.Helper()
	answer, err := conn.Who()
	if err != nil {
		s.t.Fatal(err)
	}
	own := netip.AddrPortFrom(backend.Address(conn.Remote().Addr().Is6()), targetPort)
	if answer.Server != backend.Name || answer.Local != own {
		s.t.Errorf("%s answers on %s, want %s on %s", answer.Server, answer.Local, backend, own)
	}
	if err := s.seen(client, conn, backend, answer.Client); err != nil {
		s.t.Error(err)
	}
}
