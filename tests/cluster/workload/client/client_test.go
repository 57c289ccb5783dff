// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

func TestALostDatagramIsSentAgainAndAnswersThatComeTwiceConfuseNobody(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() { // It loses each question once, and answers the others twice. The answer tells how many questions came.
		buffer := make([]byte, 64)
		for came := 1; ; came++ {
			n, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			for range 2 * (1 - came%2) {
				_, _ = server.WriteTo(fmt.Appendf(nil, "%d %s\n", came, strings.TrimSpace(string(buffer[:n]))), from)
			}
		}
	}()
	conn, err := net.Dial("udp", server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := New(conn)
	for _, want := range []string{"2", "4"} {
		if answer, err := c.Ask(Patience); err != nil || answer != want {
			t.Errorf("%q, %v; want %s", answer, err, want)
		}
	}
}

func TestNobodysAnswerIsAwaitedNoLongerThanTold(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	conn, err := net.Dial("udp", silent.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if answer, err := New(conn).Ask(10 * time.Millisecond); err == nil {
		t.Errorf("%q", answer)
	}
}
