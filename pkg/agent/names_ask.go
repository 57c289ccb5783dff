// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	wire "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
)

// ErrNoNames: no agent of the pin path answers names.
var ErrNoNames = errors.New("no agent answers names (start `nearlb agent --dns`, or name its --pin-path and --lock-dir)")

// NamesSocket is where the agent of a pin path says what names answer with, to root alone.
func NamesSocket(lockDir, pinPath string) string {
	return filepath.Join(lockDir, bpf.LockName(lockDir, pinPath)+".names.sock")
}

// AskNames has a running agent look a name up, for the Pod of an address where client is not "".
func AskNames(ctx context.Context, lockDir, pinPath, name string, qtype uint16, client string) (out dns.LookUp, err error) {
	query := url.Values{"name": {name}, "type": {wire.Type(qtype).String()}, "client": {client}}
	read := func(d *json.Decoder) error { return d.Decode(&out) }
	return out, askNames(ctx, NamesSocket(lockDir, pinPath), "/query?"+query.Encode(), askTime, read)
}

// ListNames has a running agent tell its records.
func ListNames(ctx context.Context, lockDir, pinPath string) (out []dns.Record, err error) {
	return out, askNames(ctx, NamesSocket(lockDir, pinPath), "/names", askTime, func(d *json.Decoder) error {
		for {
			var next dns.Record
			if err := d.Decode(&next); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			out = append(out, next)
		}
	})
}

// askNames has read take in what the agent behind a socket says, which has so much time for it.
func askNames(ctx context.Context, socket, request string, within time.Duration, read func(*json.Decoder) error) error {
	dial := func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		err = inDirectory(socket, func(address string) error {
			conn, err = new(net.Dialer).DialContext(ctx, "unix", address)
			return err
		})
		return conn, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}, Timeout: within}
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+request, nil)
	if err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	answer, err := client.Do(ask)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return ErrNoNames
	}
	if err != nil {
		return late("ask the agent", within, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, err := io.ReadAll(answer.Body)
		return errors.Join(err, errors.New(strings.TrimSpace(string(text))))
	}
	if err := read(json.NewDecoder(answer.Body)); err != nil {
		return late("read the agent's answer", within, err)
	}
	return nil
}

// late says what to think of where the agent took too long.
func late(doing string, within time.Duration, err error) error {
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("%s: it is not answered within %v: is the agent stopped, or does it hang? (%w)", doing, within, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// inDirectory calls use with an address for a socket that is short, however long its path: addresses have 107 bytes (unix(7)).
func inDirectory(path string, use func(address string) error) error {
	directory, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer directory.Close()
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", directory.Fd(), filepath.Base(path)))
}

// tell answers people until ctx ends. What fails is tried again.
func (n *names) tell(ctx context.Context) error {
	for ctx.Err() == nil {
		err := n.tellOn(ctx, NamesSocket(n.agent.options.LockDir, n.agent.options.PinPath))
		if n.agent.journal.trouble("tell of names", err) {
			n.agent.log.Error("tell of names", "error", err)
		}
		if err != nil {
			pause(ctx, listenAgain)
		}
	}
	return nil
}

// tellOn serves at a path, whose socket an agent may have left that was killed: the lock is ours.
func (n *names) tellOn(ctx context.Context, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove former socket: %w", err)
	}
	var listener *net.UnixListener
	err := inDirectory(path, func(address string) (err error) {
		listener, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: address})
		return err
	})
	if err != nil {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	listener.SetUnlinkOnClose(false) // by an address that means something else by then
	defer os.Remove(path)
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(err, listener.Close())
	}
	n.agent.journal.trouble("tell of names", nil)
	return answerOn(ctx, from{listener, []uint32{0, uint32(os.Geteuid())}}, n.handler())
}

// from accepts connections of some users alone. The mode of the socket keeps all others out but for the moment before it is set.
type from struct {
	*net.UnixListener
	users []uint32
}

// Accept is net.Listener's.
func (l from) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if user, err := userOf(conn); err == nil && slices.Contains(l.users, user) {
			return conn, nil
		}
		_ = conn.Close() // nothing was written
	}
}

// userOf is who connected (unix(7), SO_PEERCRED).
func userOf(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	if refused := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); refused != nil {
		return 0, refused
	}
	if err != nil {
		return 0, err
	}
	return peer.Uid, nil
}

// handler answers AskNames and ListNames, in values of JSON.
func (n *names) handler() http.Handler {
	mux := http.NewServeMux()
	for path, answer := range map[string]func(*dns.Responder, *json.Encoder, *http.Request) error{"/names": n.list, "/query": n.query} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, ask *http.Request) {
			responder := n.responder.Load()
			if responder == nil {
				http.Error(w, "the agent answers no names now: "+n.silence(), http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			if err := answer(responder, json.NewEncoder(w), ask); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
		})
	}
	return mux
}

// list writes each record as it is made: all of them take far more memory than the names that they are made of.
func (n *names) list(r *dns.Responder, out *json.Encoder, ask *http.Request) error {
	for record := range r.Records(ask.Context()) {
		if out.Encode(record) != nil {
			break // the client went away, or took too long: it sees that there is no end
		}
	}
	return nil
}

// query fails where it is not one.
func (n *names) query(r *dns.Responder, out *json.Encoder, ask *http.Request) error {
	values := ask.URL.Query()
	qtype, known := wire.StringToType[values.Get("type")]
	name := values.Get("name")
	if _, ok := wire.IsDomainName(name); !known || !ok || name == "" {
		return fmt.Errorf("name %q, type %q: want a domain name and a type of records", name, values.Get("type"))
	}
	walk, err := n.walk(name, values.Get("client"))
	if err != nil {
		return err
	}
	_ = out.Encode(r.LookUp(ask.Context(), walk, qtype)) // the client went away
	return nil
}

// walk are the names that a Pod asks for one after the other. Its spec is not read: it is taken to have the kubelet's defaults.
func (n *names) walk(name, client string) ([]string, error) {
	if client == "" {
		return []string{wire.Fqdn(name)}, nil
	}
	address, err := netip.ParseAddr(client)
	if err != nil {
		return nil, fmt.Errorf("client %q: want an IP address", client)
	}
	namespaces := n.view.NamespacesOf(address.Unmap())
	switch {
	case len(namespaces) == 0:
		return nil, fmt.Errorf("--client %s: the agent knows no Pod of this address: it knows those that Services have as ready endpoints, and all with --dns-pods verified", client)
	case len(namespaces) > 1:
		return nil, fmt.Errorf("--client %s: Pods of the Namespaces %s have this address: want an address of one", client, strings.Join(namespaces, ", "))
	}
	return dns.WalkOf(lb.NamedPod{Name: lb.PodName{Namespace: namespaces[0]}}, n.options.Zones[0], name), nil
}
