// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/lab"
)

// resolverTime is how long a resolver waits before it asks again (resolv.conf(5), timeout).
const resolverTime = 5 * time.Second

// clusterDNS is where the pods of the first node ask for names.
var clusterDNS = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, 53}), 53)

// answerNames starts a server of names in the place of the cluster's DNS, and waits until the first node's agent answers for it.
func (w *world) answerNames() {
	w.t.Helper()
	pod := w.pod(0, "coredns")
	var err error
	w.others, err = pod.Start("dns", []string{"/proc/self/exe", "dns", "serve", "-f", w.Manifests.Dir, "--listen", ":53", "--zone", "example.test"}, runAsCLI+"=1")
	w.must(err)
	const ports = "[{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]"
	w.must(w.Manifests.WriteText("kube-dns.yaml", fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: kube-dns, namespace: default}\nspec: {clusterIP: %s, ports: %s}\n"+
		"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: kube-dns-1, namespace: default, labels: {kubernetes.io/service-name: kube-dns}}\n"+
		"addressType: IPv4\nports: %s\nendpoints: [{addresses: [%s], nodeName: %s}]\n", clusterDNS.Addr(), ports, ports, pod.V4, w.nodes[0].Name)))
	w.await("names are answered", func() bool {
		return w.lookUp("web.default.svc.cluster.local.") == nil && w.scrape().sum("nearlb_dns_answering") == 1 && w.lookUp("default.svc.example.test.") == nil
	})
}

// lookUpAll asks for a name of the cluster, for one outside that was asked for before, and for a new one, whether they are answered or not.
func (w *world) lookUpAll() {
	w.asked++
	for _, name := range []string{"web.default.svc.cluster.local.", "default.svc.example.test.", fmt.Sprintf("no-%d.example.test.", w.asked)} {
		_ = w.lookUp(name)
	}
}

// lookUp asks from the first node's client.
func (w *world) lookUp(name string) error {
	conn, err := w.client.Dial(context.Background(), "udp", clusterDNS, lab.DialOptions{})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(resolverTime)); err != nil {
		return err
	}
	over := &wire.Conn{Conn: conn.Conn}
	if err := over.WriteMsg(new(wire.Msg).SetQuestion(name, wire.TypeA)); err != nil {
		return err
	}
	m, err := over.ReadMsg()
	if err == nil && m.Rcode == wire.RcodeServerFailure {
		err = fmt.Errorf("%s: SERVFAIL", name)
	}
	return err
}
