// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Host is who asks: a pod, a node, or a host outside of the cluster.
type Host interface {
	Dial(ctx context.Context, network string, to netip.AddrPort, options lab.DialOptions) (*lab.Conn, error)
	Ask(ctx context.Context, network string, to netip.AddrPort, options lab.DialOptions) (lab.Answer, error)
	Address(six bool) netip.Addr
	String() string
}

// Way is a protocol and a family.
type Way struct {
	Network string // tcp or udp
	Six     bool
}

func (w Way) String() string {
	if w.Six {
		return w.Network + "6"
	}
	return w.Network + "4"
}

// Ways are all that there are; Ways4, Ways6 and WaysTCP are some of them.
func Ways() []Way    { return []Way{{"tcp", false}, {"udp", false}, {"tcp", true}, {"udp", true}} }
func Ways4() []Way   { return Ways()[:2] }
func Ways6() []Way   { return Ways()[2:] }
func WaysTCP() []Way { return []Way{{"tcp", false}, {"tcp", true}} }

// At gives the address where a family is asked.
type At func(six bool) netip.AddrPort

// AtHost is a port of a host: a NodePort of a node, or a pod itself.
func AtHost(h Host, port uint16) At {
	return func(six bool) netip.AddrPort { return netip.AddrPortFrom(h.Address(six), port) }
}

// AtAddresses is a port of an address of each family.
func AtAddresses(four, six netip.Addr, port uint16) At {
	return func(is6 bool) netip.AddrPort {
		if is6 {
			return netip.AddrPortFrom(six, port)
		}
		return netip.AddrPortFrom(four, port)
	}
}

// OnClusterIP is where the Service is asked by default. It asks the API server for the addresses once.
func (s *Service) OnClusterIP() At {
	s.cluster.T.Helper()
	return AtAddresses(s.ClusterIP(false), s.ClusterIP(true), ServicePort)
}

// AwaitServers waits until new connections of the client to the ClusterIPs reach all of these pods and no others, over every way.
func (s *Service) AwaitServers(client Host, want ...*Pod) {
	s.cluster.T.Helper()
	s.cluster.AwaitServers(client, s.OnClusterIP(), Ways(), want...)
}

// AwaitServers waits until new connections of the client to an address reach all of these pods and no others.
func (c *Cluster) AwaitServers(client Host, at At, ways []Way, want ...*Pod) {
	c.T.Helper()
	names := make([]string, len(want))
	for i, p := range want {
		names[i] = p.Host.Name
	}
	slices.Sort(names)
	c.awaitSeen(client, at, ways, 10*len(want), strings.Join(names, " "))
}

// Refused is what Seen says where a connection is refused at once: by a reset, or by an ICMP error for UDP.
const Refused = "(refused)"

// AwaitRefused waits until new connections of the client are refused at once.
func (c *Cluster) AwaitRefused(client Host, at At, ways []Way) {
	c.T.Helper()
	c.awaitSeen(client, at, ways, 1, Refused)
}

// AwaitSilence waits until nobody answers the client, which is not told so either.
func (c *Cluster) AwaitSilence(client Host, at At, ways []Way) {
	c.T.Helper()
	c.awaitSeen(client, at, ways, 1, "(timeout)")
}

// awaitSeen asks on all ways at once: most of the time is waiting for those who do not answer.
func (c *Cluster) awaitSeen(client Host, at At, ways []Way, times int, want string) {
	c.T.Helper()
	c.AwaitServing()
	seen, late := make([]string, len(ways)), make([]error, len(ways))
	var all sync.WaitGroup
	for i, w := range ways {
		all.Go(func() {
			late[i] = lab.Await(Patience, func() bool {
				seen[i] = Seen(client, w, at(w.Six), times)
				return seen[i] == want
			})
		})
	}
	all.Wait()
	for i, w := range ways {
		if late[i] != nil {
			c.T.Fatalf("%s asks %s over %s: answered by %q, want %q: %v", client, at(w.Six), w, seen[i], want, late[i])
		}
	}
}

// Seen is who answers that many new connections, sorted; what is wrong, if anything, is among them.
func Seen(client Host, w Way, to netip.AddrPort, times int) string {
	seen := map[string]bool{}
	for range max(times, 1) {
		answer, err := client.Ask(context.Background(), w.Network, to, lab.DialOptions{Patience: time.Second})
		if err != nil {
			seen[failure(err)] = true
			break
		}
		seen[answer.Server] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), " ")
}

func failure(err error) string {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.As(err, &timeout) && timeout.Timeout():
		return "(timeout)"
	}
	return fmt.Sprintf("(%v)", err)
}

// AwaitSameServer waits until twenty new connections of the client are answered by one and the same server, whichever it is.
func (c *Cluster) AwaitSameServer(client Host, at At, ways []Way) {
	c.T.Helper()
	for _, w := range ways {
		c.Await(fmt.Sprintf("%s is answered by one server at %s over %s", client, at(w.Six), w), func() bool {
			seen := Seen(client, w, at(w.Six), 20)
			return seen != "" && !strings.ContainsAny(seen, " (")
		})
	}
}

// AwaitUnanswered waits until the client is not answered, for whatever reason.
func (c *Cluster) AwaitUnanswered(client Host, at At, ways []Way) {
	c.T.Helper()
	for _, w := range ways {
		c.Await(fmt.Sprintf("%s is not answered at %s over %s", client, at(w.Six), w), func() bool {
			return strings.HasPrefix(Seen(client, w, at(w.Six), 1), "(")
		})
	}
}

// AwaitAnswer waits until a new connection of the client is answered as it should be.
func (c *Cluster) AwaitAnswer(client Host, at At, ways []Way, want func(lab.Answer) bool) {
	c.T.Helper()
	for _, w := range ways {
		var last string
		err := lab.Await(Patience, func() bool {
			answer, err := client.Ask(context.Background(), w.Network, at(w.Six), lab.DialOptions{Patience: time.Second})
			last = fmt.Sprintf("%+v, %v", answer, err)
			return err == nil && want(answer)
		})
		if err != nil {
			c.T.Fatalf("%s asks %s over %s: last answer %s: %v", client, at(w.Six), w, last, err)
		}
	}
}

// AwaitNames is AwaitServers for servers that are no pods.
func (c *Cluster) AwaitNames(client Host, at At, ways []Way, want ...string) {
	c.T.Helper()
	names := slices.Sorted(slices.Values(want))
	c.awaitSeen(client, at, ways, 10*len(want), strings.Join(names, " "))
}

// AwaitStatus waits until a request over HTTP is answered with that status.
func (c *Cluster) AwaitStatus(client Host, at netip.AddrPort, want int) {
	c.T.Helper()
	var last string
	err := lab.Await(Patience, func() bool {
		code, err := status(client, at)
		last = fmt.Sprintf("%d, %v", code, err)
		return code == want
	})
	if err != nil {
		c.T.Fatalf("%s asks http://%s: %s, want %d: %v", client, at, last, want, err)
	}
}

func status(client Host, at netip.AddrPort) (int, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return client.Dial(ctx, "tcp", at, lab.DialOptions{})
	}
	asker := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	answer, err := asker.Get("http://" + at.String() + "/")
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, answer.Body.Close()
}

// AwaitNoServer waits until nobody listens for HTTP.
func (c *Cluster) AwaitNoServer(client Host, at netip.AddrPort) {
	c.T.Helper()
	c.Await("nobody listens at "+at.String(), func() bool {
		_, err := status(client, at)
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}
