// SPDX-License-Identifier: Apache-2.0

// Package server answers what package client asks.
package server

import (
	"bufio"
	"fmt"
	"net"
	"os"
)

// longest is the longest question, in bytes.
const longest = 1 << 20

// Accept answers each line of each connection with the name, who asks, and the line, until the listener is closed.
func Accept(listener net.Listener, name string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			in := bufio.NewScanner(conn)
			in.Buffer(nil, longest)
			for in.Scan() {
				if _, err := fmt.Fprintf(conn, "%s %s %s\n", name, conn.RemoteAddr(), in.Text()); err != nil {
					return
				}
			}
			if err := in.Err(); err != nil {
				fmt.Fprintf(os.Stderr, "read questions of %s: %v\n", conn.RemoteAddr(), err)
			}
		}()
	}
}
