// SPDX-License-Identifier: Apache-2.0

package dnsoracle

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"

	wire "github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/watch"
)

// setup is what both servers are told: the responder's own options, and what they lack.
type setup struct {
	dns.Options
	podNames bool
	upstream bool // outside answers everything else
}

// startNearlb reads the objects as `nearlb dns serve` does.
func startNearlb(t cleaner, s setup, known bool, objects ...runtime.Object) *dns.Responder {
	view := dns.NewView(dns.ViewOptions{PodNames: s.podNames})
	if known {
		if _, err := watch.FollowNames([]string{"-"}, bytes.NewReader(textOf(t, objects)), slog.New(slog.DiscardHandler), view); err != nil {
			t.Fatalf("nearlb refuses the cluster: %v", err)
		}
	}
	o := s.Options
	if s.upstream {
		o.Forwarder = dns.NewForwarder(upstream{})
	}
	return dns.NewResponder(view, o)
}

// textOf is YAML of the objects.
func textOf(t cleaner, objects []runtime.Object) []byte {
	var out bytes.Buffer
	for _, o := range objects {
		o = o.DeepCopyObject()
		kinds, _, err := scheme.Scheme.ObjectKinds(o)
		if err != nil {
			t.Fatalf("%v", err)
		}
		o.GetObjectKind().SetGroupVersionKind(kinds[0])
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatalf("%v", err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes()
}

func askNearlb(r *dns.Responder, query *wire.Msg, from transport) *wire.Msg {
	address, _ := netip.AddrFromSlice(from.client())
	return r.Serve(context.Background(), query.Copy(), dns.Client{Address: address.Unmap(), TCP: from.tcp, IP6: from.ip6})
}

// upstream is outside as nearlb asks it.
type upstream struct{}

func (upstream) Exchange(_ context.Context, query *wire.Msg) (*wire.Msg, error) {
	return outside(query), nil
}
