// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
)

// ErrNoNames: no agent of the pin path answers names.
var ErrNoNames = errors.New("no agent answers names (start `nearlb agent --dns`, or name its --pin-path and --lock-dir)")

// AskNames has a running agent look a name up, for the Pod of an address where client is not "".
func AskNames(ctx context.Context, lockDir, pinPath, name string, qtype uint16, client string) (out dns.LookUp, err error) {
	query := url.Values{"name": {name}, "type": {wire.Type(qtype).String()}, "client": {client}}
	read := func(d *json.Decoder) error { return d.Decode(&out) }
	return out, askNames(ctx, Socket(lockDir, pinPath), "/query?"+query.Encode(), read)
}

// ListNames has a running agent tell its records.
func ListNames(ctx context.Context, lockDir, pinPath string) (out []dns.Record, err error) {
	return out, askNames(ctx, Socket(lockDir, pinPath), "/names", func(d *json.Decoder) error {
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

// askNames is askAgent for an agent that answers names.
func askNames(ctx context.Context, socket, request string, read func(*json.Decoder) error) error {
	if err := askAgent(ctx, socket, request, askTime, read); !errors.Is(err, ErrNotAsked) {
		return err
	}
	return ErrNoNames
}

// pieceOfAnswer is how much of an answer is gathered before it is sent, in bytes.
const pieceOfAnswer = 64 << 10

// answer has AskNames and ListNames answered, in values of JSON. Without names it says so.
func (n *names) answer(mux *http.ServeMux) {
	for path, answer := range map[string]func(*dns.Responder, *json.Encoder, *http.Request) error{"/names": n.list, "/query": n.query} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, ask *http.Request) {
			if n == nil {
				http.Error(w, ErrNoNames.Error(), http.StatusNotFound)
				return
			}
			responder := n.responder.Load()
			if responder == nil {
				http.Error(w, "the agent answers no names now: "+n.whyNot(), http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			out := bufio.NewWriterSize(lasting{w, http.NewResponseController(w)}, pieceOfAnswer)
			if err := answer(responder, json.NewEncoder(out), ask); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			_ = out.Flush() // or the client went away
		})
	}
}

// lasting gives the client so much time for each piece of an answer.
type lasting struct {
	http.ResponseWriter
	control *http.ResponseController
}

// Write is io.Writer's.
func (l lasting) Write(data []byte) (int, error) {
	if err := l.control.SetWriteDeadline(time.Now().Add(askTime)); err != nil {
		return 0, err
	}
	return l.ResponseWriter.Write(data)
}

// list writes records as they are made: all of them take far more memory than the names that they are made of.
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
	found := r.LookUp(ask.Context(), walk, qtype)
	if found.Way == dns.WayResponder && n.inKernel(found.Name, qtype) {
		found.Way = dns.WayKernel
	}
	_ = out.Encode(found) // the client went away
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
