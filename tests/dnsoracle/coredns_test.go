// SPDX-License-Identifier: Apache-2.0

package dnsoracle

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"time"
	"unsafe"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/kubernetes"
	wire "github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearlb/nearlb/tests/fakeapi"
)

// coreDNS is CoreDNS's server with its kubernetes plugin, and outside behind it where the setup has an upstream.
type coreDNS struct {
	server *dnsserver.Server
	plugin *kubernetes.Kubernetes
}

// cleaner is a test or a benchmark, or one world of rapid's.
type cleaner interface {
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// startCoreDNS serves the objects to the plugin. Unless they are to be known it answers as before its first list.
func startCoreDNS(t cleaner, dir string, s setup, known bool, objects ...runtime.Object) *coreDNS {
	api := fakeapi.New(fakeapi.Options{})
	api.Put(objects...)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("%v", err)
	}
	running := api.Start(listener)
	t.Cleanup(running.Close)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := running.WriteKubeconfig(kubeconfig); err != nil {
		t.Fatalf("%v", err)
	}
	corefile := caddy.NewTestController("dns", s.stanza(kubeconfig))
	corefile.Next() // the plugin's name
	k, err := kubernetes.ParseStanza(corefile)
	if err != nil {
		t.Fatalf("read %s: %v", s.stanza(kubeconfig), err)
	}
	if _, _, err := k.InitKubeCache(context.Background()); err != nil {
		t.Fatalf("%v", err)
	}
	setOwnAddresses(k, s)
	if known {
		go k.APIConn.Run()
		t.Cleanup(func() { _ = k.APIConn.Stop() })
		for deadline := time.Now().Add(time.Minute); !k.APIConn.HasSynced(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("CoreDNS does not know its objects")
			}
		}
	}
	server, err := dnsserver.NewServer("dns://127.0.0.1:53", s.zonesOf(k))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return &coreDNS{server, k}
}

// stanza is the plugin's part of a Corefile.
func (s setup) stanza(kubeconfig string) string {
	lines := []string{"kubeconfig " + kubeconfig, fmt.Sprintf("pods %s", s.Pods), fmt.Sprintf("ttl %d", s.TTL)}
	for line, wanted := range map[string]bool{"zonal": s.Zonal, "ignore empty_service": s.IgnoreEmpty, "endpoint_pod_names": s.podNames,
		"fallthrough in-addr.arpa ip6.arpa": s.upstream} {
		if wanted {
			lines = append(lines, line)
		}
	}
	return fmt.Sprintf("kubernetes %s {\n%s\n}\n", strings.Join(append(s.Zones, s.ReverseZones...), " "), strings.Join(lines, "\n"))
}

// zonesOf has the server ask the plugin for its zones, and where there is an upstream for everything.
func (s setup) zonesOf(k *kubernetes.Kubernetes) (group []*dnsserver.Config) {
	zones := k.Zones
	if s.upstream {
		zones = []string{"."}
	}
	for _, zone := range zones {
		config := &dnsserver.Config{Zone: zone, Transport: "dns"}
		config.AddPlugin(func(plugin.Handler) plugin.Handler {
			if s.upstream {
				k.Next = plugin.HandlerFunc(func(_ context.Context, w wire.ResponseWriter, query *wire.Msg) (int, error) {
					return wire.RcodeSuccess, w.WriteMsg(outside(query))
				})
			}
			return k
		})
		group = append(group, config)
	}
	return group
}

// setOwnAddresses says on which addresses CoreDNS answers, which its setup takes from a server that listens.
func setOwnAddresses(k *kubernetes.Kubernetes, s setup) {
	var all []net.IP
	for _, a := range s.OwnAddresses {
		all = append(all, a.AsSlice())
	}
	field := reflect.ValueOf(k).Elem().FieldByName("localIPs")
	reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Set(reflect.ValueOf(all))
}

// answer is what a client gets.
func (c *coreDNS) answer(query *wire.Msg, from transport) *wire.Msg {
	w := &writer{from: from}
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, c.server)
	c.server.ServeDNS(context.WithValue(ctx, dnsserver.LoopKey{}, 0), w, query.Copy())
	return w.reply
}

// transport is how a question comes.
type transport struct{ tcp, ip6 bool }

func (f transport) client() net.IP {
	if f.ip6 {
		return net.ParseIP("2001:db8:1::7")
	}
	return net.IPv4(192, 0, 2, 7)
}

// writer keeps what a server writes.
type writer struct {
	from  transport
	reply *wire.Msg
}

func (w *writer) WriteMsg(m *wire.Msg) error {
	w.reply = m
	return nil
}

func (w *writer) RemoteAddr() net.Addr {
	if w.from.tcp {
		return &net.TCPAddr{IP: w.from.client(), Port: 40000}
	}
	return &net.UDPAddr{IP: w.from.client(), Port: 40000}
}

func (w *writer) LocalAddr() net.Addr         { return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 53} }
func (w *writer) Write(b []byte) (int, error) { return len(b), nil }
func (w *writer) Close() error                { return nil }
func (w *writer) TsigStatus() error           { return nil }
func (w *writer) TsigTimersOnly(bool)         {}
func (w *writer) Hijack()                     {}
