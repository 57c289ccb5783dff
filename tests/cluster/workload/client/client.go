// SPDX-License-Identifier: Apache-2.0

// Package client asks the servers of the command workload who they are.
package client

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Patience is how long an address may take until it is served, and a connection until it goes on: only what never comes is a failure,
// and nodes of a test share few processors.
const Patience = 4 * time.Minute

// Attempt is how long a new connection may take to its first answer: the next one may find what this one did not.
const Attempt = 20 * time.Second

// again is how long a datagram may take before it is sent once more.
const again = time.Second

// Conn is a connection to a server, over TCP or UDP.
type Conn struct {
	net.Conn
	More int // bytes that each question, and its answer, is longer than it has to be

	in    *bufio.Reader
	asked int
}

// largest is the largest datagram.
const largest = 1 << 16

// New takes a connection over.
func New(conn net.Conn) *Conn { return &Conn{Conn: conn, in: bufio.NewReaderSize(conn, largest)} }

// Ask gives the name of who answers, and the address that it sees: "NAME HOST:PORT". Over UDP it repeats the question each second.
func (c *Conn) Ask(patience time.Duration) (string, error) {
	c.asked++
	question, every := strings.Repeat("x", c.More)+strconv.Itoa(c.asked), patience
	if c.LocalAddr().Network() == "udp" {
		every = again
	}
	for end := time.Now().Add(patience); ; {
		answer, err := c.exchange(question, earlier(end, time.Now().Add(every)))
		if !errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(end) {
			return answer, err
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// exchange sends the question and awaits its answer. Those to questions before it, which came twice, are passed over.
func (c *Conn) exchange(question string, end time.Time) (string, error) {
	if err := c.SetDeadline(end); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(c, question); err != nil {
		return "", err
	}
	for {
		line, err := c.in.ReadString('\n')
		if err != nil {
			return "", err
		}
		if answer, found := strings.CutSuffix(line, " "+question+"\n"); found {
			return answer, nil
		}
	}
}
