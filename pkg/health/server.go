// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// timeout of one request; a check that takes longer than a load balancer's patience is of no use.
const timeout = 10 * time.Second

// weightHeader tells load balancers that weigh nodes by their endpoints how many there are.
const weightHeader = "X-Load-Balancing-Endpoint-Weight"

// server is one port on one address.
type server struct {
	http     http.Server
	listener net.Listener
}

// listen opens the port. The address need not be on a device yet: it may come later, or be IPv6 and still in detection of
// duplicates.
func listen(at netip.AddrPort, s *Servers) (*server, error) {
	config := net.ListenConfig{Control: freeBind}
	listener, err := config.Listen(context.Background(), "tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("listen on %v: %w", at, err)
	}
	return &server{
		http: http.Server{Handler: handler{s, at}, ReadTimeout: timeout, WriteTimeout: timeout,
			IdleTimeout: time.Minute},
		listener: listener,
	}, nil
}

func freeBind(network, _ string, raw syscall.RawConn) error {
	var err error
	control := raw.Control(func(fd uintptr) {
		if network == "tcp6" {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
		}
	})
	if control != nil {
		return control
	}
	return err
}

// serve returns when the server was closed, or cannot take connections any more.
func (s *server) serve() { _ = s.http.Serve(s.listener) }

// close ends the connections too: what they ask for may be another's next.
func (s *server) close() {
	_ = s.http.Close()
	_ = s.listener.Close() // serve may not have begun
}

// handler answers for the Service that has the port, on every path.
type handler struct {
	servers *Servers
	at      netip.AddrPort
}

// body has the names of kube-proxy's answer.
type body struct {
	Service   service `json:"service"`
	Endpoints int     `json:"localEndpoints"`
	Healthy   bool    `json:"serviceProxyHealthy"`
}

type service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (h handler) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	name, endpoints, asked := h.servers.answer(h.at)
	if !asked { // about to be closed
		h.servers.Answered(http.StatusServiceUnavailable)
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	b := body{Service: service{name.Namespace, name.Name}, Endpoints: endpoints, Healthy: h.servers.Fresh()}
	code := http.StatusServiceUnavailable
	if b.Endpoints > 0 && b.Healthy {
		code = http.StatusOK
	}
	h.servers.Answered(code)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set(weightHeader, strconv.Itoa(b.Endpoints))
	w.WriteHeader(code)
	text, _ := json.MarshalIndent(b, "", "\t") // of strings and numbers
	_, _ = w.Write(text)                       // else the client went away
}
