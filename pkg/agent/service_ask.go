// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// ServiceNews is what an agent knows of a Service and of one of its clients, by the objects as they are now.
type ServiceNews struct {
	Known     bool                `json:"known"`     // there is such a Service to serve
	Endpoints []lb.EndpointReason `json:"endpoints"` // every one of every slice, in or out, and why
	Problems  []lb.Problem        `json:"problems"`
	Pod       string              `json:"pod"`       // namespace/name of the client; "" not known
	Addresses []netip.Addr        `json:"addresses"` // of the client; none where a Pod is not known
}

// AskService has a running agent tell of a Service and of a client: an address, or a Pod as namespace/name.
func AskService(ctx context.Context, lockDir, pinPath string, service lb.ServiceName, client string) (out ServiceNews, err error) {
	query := url.Values{"name": {service.String()}, "client": {client}}
	return out, askAgent(ctx, Socket(lockDir, pinPath), "/service?"+query.Encode(), askTime, func(d *json.Decoder) error { return d.Decode(&out) })
}

// answerService decides about a Service as the loop does, with the reason of each endpoint.
func (d *daemon) answerService(w http.ResponseWriter, ask *http.Request) {
	var name lb.ServiceName
	if err := name.UnmarshalText([]byte(ask.URL.Query().Get("name"))); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	news := ServiceNews{Endpoints: []lb.EndpointReason{}, Problems: []lb.Problem{}, Addresses: []netip.Addr{}}
	d.nameClient(ask.URL.Query().Get("client"), &news)
	if source, can := d.source.(watch.Looker); can {
		var in lb.Input
		if in, news.Known = source.Look(name); news.Known {
			decision := decide.Decide(in, d.now.Load().node())
			news.Endpoints, news.Problems = append(news.Endpoints, decision.Endpoints...), append(news.Problems, decision.Problems...)
		}
	}
	for _, p := range d.now.Load().status().Problems {
		if of, is := serviceOf(p.Object); is && of == name {
			news.Problems = append(news.Problems, p)
		}
	}
	out := newLines(w)
	out.write(news)
	_ = out.flush() // the client went away
}

// nameClient finds the Pod of an address, and the addresses of a Pod.
func (d *daemon) nameClient(client string, news *ServiceNews) {
	if address, err := netip.ParseAddr(client); err == nil {
		news.Addresses = append(news.Addresses, address.Unmap())
		if pod, known := d.podAt(address.Unmap()); known {
			news.Pod = pod.String()
		}
		return
	}
	namespace, name, _ := strings.Cut(client, "/")
	if source, can := d.source.(watch.PodSource); can {
		news.Addresses = append(news.Addresses, source.PodAddresses(lb.PodName{Namespace: namespace, Name: name})...)
	}
	if len(news.Addresses) > 0 {
		news.Pod = client
	}
}
