// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/lab"
)

// --socket-lb=all, beyond what everybody sees.
func TestPodsSocketsThatPickTheirBackendsThemselves(t *testing.T) {
	s := onStage(t, options{agent: []string{"--socket-lb", "all"}})
	s.part("hear that their backend left", checkLeftSockets)
	s.part("reach their own pod", checkOwnAnswer)
	s.part("are refused without backend", checkRefused)
}

// A socket that picks its own pod needs no address but the pod's, as which the server sees it.
func checkOwnAnswer(t *testing.T, s *stage) {
	of := s.next()
	s.serve(of, ready(s.near)...)
	for _, kind := range frontends() {
		for _, w := range ways() {
			conn := s.dial(s.near, of, kind, w)
			s.checkAnswer(s.near, conn, s.near)
			checkContent(t, conn, w, s.near.Name)
		}
	}
}

// The agent finds a pod's sockets by the pod's processes.
func checkLeftSockets(t *testing.T, s *stage) {
	if _, err := s.pod.Start("process", []string{"/bin/sleep", "1000000"}); err != nil {
		t.Fatal(err)
	}
	of := s.next()
	of.hints = true
	s.serve(of, ready(s.near, s.far)...)
	var sockets []*lab.Conn
	for _, six := range []bool{false, true} {
		for _, kind := range frontends() {
			socket := s.dial(s.pod, of, kind, way{"udp", six})
			mustBe(t, socket, s.near.Name)
			sockets = append(sockets, socket)
		}
	}
	of.publish(ready(s.far)...)
	for _, socket := range sockets { // the former backend would answer, but nobody asks it
		if err := socket.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := socket.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNABORTED) {
			t.Fatalf("%s -> %s: %v, want %v", socket.Local(), socket.Remote(), err, syscall.ECONNABORTED)
		}
		reconnect(t, socket)
		mustBe(t, socket, s.far.Name)
	}
}

// reconnect connects a UDP socket once more to whom it was connected to.
func reconnect(t *testing.T, socket *lab.Conn) {
	t.Helper()
	raw, err := socket.Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	controlErr := raw.Control(func(fd uintptr) { err = unix.Connect(int(fd), sockaddr(socket.Remote())) })
	if err := errors.Join(controlErr, err); err != nil {
		t.Fatalf("connect again to %s: %v", socket.Remote(), err)
	}
}
