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
	"strings"

	wire "github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
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
	return out, askNames(ctx, lockDir, pinPath, "/query?"+query.Encode(), &out)
}

// ListNames has a running agent tell its records.
func ListNames(ctx context.Context, lockDir, pinPath string) (out []dns.Record, err error) {
	return out, askNames(ctx, lockDir, pinPath, "/names", &out)
}

func askNames(ctx context.Context, lockDir, pinPath, request string, out any) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		err = inDirectory(NamesSocket(lockDir, pinPath), func(address string) error {
			conn, err = new(net.Dialer).DialContext(ctx, "unix", address)
			return err
		})
		return conn, err
	}}}
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+request, nil)
	if err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	answer, err := client.Do(ask)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return ErrNoNames
	}
	if err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, err := io.ReadAll(answer.Body)
		return errors.Join(err, errors.New(strings.TrimSpace(string(text))))
	}
	if err := json.NewDecoder(answer.Body).Decode(out); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	return nil
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
	server := &http.Server{Handler: n.handler(), ReadHeaderTimeout: readTimeout, WriteTimeout: 3 * readTimeout}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { <-ctx.Done(); return server.Close() })
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return group.Wait()
}

// handler answers AskNames and ListNames.
func (n *names) handler() http.Handler {
	answer := func(w http.ResponseWriter, of func(r *dns.Responder) (any, error)) {
		responder := n.responder.Load()
		if responder == nil {
			http.Error(w, "the agent answers no names now: not all are in force, or the node has no address of its own", http.StatusServiceUnavailable)
			return
		}
		out, err := of(responder)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // the client went away
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /names", func(w http.ResponseWriter, ask *http.Request) {
		answer(w, func(r *dns.Responder) (any, error) { return r.Records(ask.Context()), nil })
	})
	mux.HandleFunc("GET /query", func(w http.ResponseWriter, ask *http.Request) {
		answer(w, func(r *dns.Responder) (any, error) {
			values := ask.URL.Query()
			qtype, known := wire.StringToType[values.Get("type")]
			name := values.Get("name")
			if _, ok := wire.IsDomainName(name); !known || !ok || name == "" {
				return nil, fmt.Errorf("name %q, type %q: want a domain name and a type of records", name, values.Get("type"))
			}
			walk, err := n.walk(name, values.Get("client"))
			if err != nil {
				return nil, err
			}
			return r.LookUp(ask.Context(), walk, qtype), nil
		})
	})
	return mux
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
	kubelet := dns.Kubelet{Zone: n.options.Zones[0], ClusterDNS: []netip.Addr{address}} // any: only the search list is used
	return kubelet.NamesOf(lb.NamedPod{Name: lb.PodName{Namespace: namespaces[0]}}).Walk(name), nil
}
