// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// named is a cluster whose first node answers names, from a real API server's objects.
type named struct {
	*rig.Cluster
	t      *testing.T
	node   *rig.Node
	client *lab.Pod
	dns    netip.Addr // ClusterIP of the cluster's DNS, which has no endpoint: whoever answers is the node
}

func newNamed(t *testing.T) *named {
	c := rig.Shared(t)
	n := &named{Cluster: c, t: t}
	n.mayListNamespaces()
	n.node = c.NewNode(rig.NodeOptions{NodeOptions: lab.NodeOptions{Zone: "a"}, NoAgent: true})
	n.dns = n.create("kube-dns", func(s *corev1.ServiceSpec) {
		s.Ports = []corev1.ServicePort{{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}}
	})
	n.client = c.Client(n.node.Number, "client")
	c.StartAgent(n.node, "--dns", "--dns-service="+c.Namespace+"/kube-dns")
	return n
}

// mayListNamespaces gives agents the role that manifests/components/dns adds.
func (n *named) mayListNamespaces() {
	n.t.Helper()
	ctx, meta, roles := n.t.Context(), metav1.ObjectMeta{Name: "nearlb-names"}, n.API.RbacV1()
	_, err := roles.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta,
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"list", "watch"}}}}, metav1.CreateOptions{})
	must(n.t, err)
	_, err = roles.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: "nearlb"}}}, metav1.CreateOptions{})
	must(n.t, err)
	n.t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		must(n.t, errors.Join(roles.ClusterRoleBindings().Delete(ctx, meta.Name, metav1.DeleteOptions{}), roles.ClusterRoles().Delete(ctx, meta.Name, metav1.DeleteOptions{})))
	})
	must(n.t, n.Plane.AwaitRight(ctx, rig.Account, authorizationv1.ResourceAttributes{Verb: "list", Resource: "namespaces"}))
}

// create makes a Service that selects app=NAME, and returns its first address.
func (n *named) create(name string, change func(*corev1.ServiceSpec)) netip.Addr {
	n.t.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: n.Namespace}}
	s.Spec.Selector = map[string]string{"app": name}
	s.Spec.Ports = []corev1.ServicePort{{Name: "foo", Protocol: corev1.ProtocolTCP, Port: 1234}}
	change(&s.Spec)
	made, err := n.API.CoreV1().Services(n.Namespace).Create(n.t.Context(), s, metav1.CreateOptions{})
	must(n.t, err)
	address, _ := netip.ParseAddr(made.Spec.ClusterIP)
	return address
}

// absolute is the name of something below the test's Namespace.
func (n *named) absolute(name string) string { return name + "." + n.Namespace + ".svc.cluster.local." }

// says is what the agent answers with A records for such a name: the code and sorted addresses.
func (n *named) says(name string) string {
	const a = 1 // RFC 1035 3.2.2
	found, err := agent.AskNames(n.t.Context(), n.LockDir(), n.node.PinPath(), n.absolute(name), a, "")
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, record := range found.Answers {
		all = append(all, record.Data)
	}
	slices.Sort(all)
	return strings.Join(append([]string{found.Rcode}, all...), " ")
}

// resolver is Go's in the pod: it asks twice.
func (n *named) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := n.client.Dial(ctx, "udp", netip.AddrPortFrom(n.dns, 53), lab.DialOptions{})
		if err != nil {
			return nil, err
		}
		return conn.Conn, nil
	}}
}

// busybox is the example of the DNS documentation: a Service, and two pods of it with hostnames, in a subdomain.
func (n *named) busybox(service, subdomain string) (addresses []string) {
	n.t.Helper()
	n.create(service, func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone })
	for _, number := range []string{"1", "2"} {
		p := n.NewPod(rig.PodOptions{App: service, Name: service + "-pod" + number, Silent: true, Change: func(o *corev1.Pod) {
			o.Spec.Hostname, o.Spec.Subdomain = "busybox-"+number, subdomain
		}})
		addresses = append(addresses, p.V4.String())
	}
	return addresses
}

// D10, D11, D12, D14, D15: the controller gives an endpoint its pod's hostname where the pod's subdomain is the Service, and no name otherwise.
func (n *named) namesPods() {
	n.t.Helper()
	published, corrected := n.busybox("busybox-subdomain", "busy-subdomain"), n.busybox("corrected", "corrected")
	n.create("plain", func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone })
	plain := n.NewPod(rig.PodOptions{App: "plain", Name: "plain-pod", Silent: true, Change: func(o *corev1.Pod) { o.Spec.Subdomain = "plain" }}).V4.String()
	dashed := func(address string) string { return strings.ReplaceAll(address, ".", "-") }
	all := func(addresses []string) string {
		slices.Sort(addresses)
		return "NOERROR " + strings.Join(addresses, " ")
	}
	for _, row := range []struct{ rule, name, want string }{
		{"D12 as published: the Service", "busybox-subdomain", all(slices.Clone(published))},
		{"D12 as published: a hostname", "busybox-1.busybox-subdomain", "NXDOMAIN"},
		{"D12 as published: the subdomain", "busybox-1.busy-subdomain", "NXDOMAIN"},
		{"D12 as published: an address", dashed(published[0]) + ".busybox-subdomain", "NOERROR " + published[0]},
		{"D11, D12 corrected", "busybox-1.corrected", "NOERROR " + corrected[0]},
		{"D11, D12 corrected", "busybox-2.corrected", "NOERROR " + corrected[1]},
		{"D10, D14: the pod's name", "corrected-pod1.corrected", "NXDOMAIN"},
		{"D14: the pod's name", "plain-pod.plain", "NXDOMAIN"},
		{"D15: a subdomain alone", "plain", "NOERROR " + plain},
	} {
		said := ""
		n.Await(row.rule+": "+row.name, func() bool { said = n.says(row.name); return said == row.want })
	}
}

// Without the API server traffic goes on, and questions of a pod are answered as before, in the kernel and by the responder; what changes after its
// return is followed.
func TestConnectionsAndNamesOutliveAnAPIServerThatRestartsAndIsFollowedOn(t *testing.T) {
	n := newNamed(t)
	traffic := newTraffic(n.Cluster)
	web := n.create("web", func(*corev1.ServiceSpec) {})
	n.namesPods()
	resolver := n.resolver()
	const pause = 5 * time.Millisecond // else questions take the processors from the API server that comes back
	asks := map[string]func(context.Context) error{
		"in the kernel": func(ctx context.Context) error {
			got, err := resolver.LookupNetIP(ctx, "ip4", n.absolute("web"))
			if err == nil && !slices.Equal(got, []netip.Addr{web}) {
				err = fmt.Errorf("web is at %v, want %v", got, web)
			}
			return err
		},
		"by the responder": func(ctx context.Context) error {
			_, got, err := resolver.LookupSRV(ctx, "foo", "tcp", n.absolute("web"))
			if err == nil && (len(got) != 1 || got[0].Port != 1234) {
				err = fmt.Errorf("web's port: %v", got)
			}
			return err
		},
	}
	ctx, stop := context.WithCancel(t.Context())
	var answered atomic.Int64
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	for how, ask := range asks {
		n.Await("a pod's question, "+how, func() bool { return ask(ctx) == nil })
		group.Go(func() {
			for ctx.Err() == nil {
				err := ask(ctx)
				for try := 0; try < 25 && err != nil && strings.Contains(err.Error(), "refused"); try++ {
					time.Sleep(200 * time.Millisecond) // who answers stood still for a second: the cluster's DNS is asked, which has nobody
					err = ask(ctx)
				}
				if err != nil && ctx.Err() == nil {
					t.Errorf("after %d answers, %s: %v", answered.Load(), how, err)
					return
				}
				answered.Add(1)
				time.Sleep(pause)
			}
		})
	}
	more := func(when string) {
		t.Helper()
		from := answered.Load()
		n.Await("answers "+when, func() bool { return answered.Load() >= from+1000 || t.Failed() })
	}
	status := func() agent.Status {
		s, _ := agent.ReadStatus(n.LockDir(), n.node.PinPath())
		return s
	}
	blind := func() bool {
		return strings.Contains(strings.Join(status().Trouble, "\n"), "objects cannot be read from the API server")
	}
	more("with an API server")
	must(t, n.Plane.APIServer.Kill())
	n.Await("an outage", blind)
	more("without an API server")
	traffic.load.Round()
	if s := status(); s.Names == nil || !s.Names.Answering || s.Names.Kernel == nil || !s.Names.Kernel.Answering {
		t.Errorf("without an API server: %+v", s.Names)
	}
	must(t, n.Plane.StartAPIServer(t.Context()))
	n.Await("the end of the outage", func() bool { return !blind() })
	address := n.create("late", func(*corev1.ServiceSpec) {})
	n.Await("a new name", func() bool { return n.says("late") == "NOERROR "+address.String() })
	more("after the outage")
	traffic.goesOn()
	stop()
	group.Wait()
	t.Logf("%d answers", answered.Load())
}

// traffic is a Service that clients on two nodes use all the time.
type traffic struct {
	*rig.Cluster
	client   rig.Host
	one, two *rig.Pod
	web      *rig.Service
	load     *rig.Load
}

func newTraffic(c *rig.Cluster) *traffic {
	used := &traffic{Cluster: c, client: c.Client(0, "client"), one: c.Server("used", "one", 0), two: c.Server("used", "two", 2)}
	used.web = c.Service("used", nil)
	used.web.AwaitServers(used.client, used.one, used.two)
	used.load = c.StartLoad(used.web.OnClusterIP(), rig.Ways(), used.client, c.Node(1))
	used.load.Round()
	return used
}

// goesOn ends it: nothing was lost, a pod that terminates is left, and a Service that comes is served.
func (u *traffic) goesOn() {
	u.T.Helper()
	u.load.Round()
	u.one.Terminate() // and serves on: UDP clients of the node that wait for an answer are ended if it does not
	u.web.AwaitServers(u.client, u.two)
	u.load.Round()
	u.load.End()
	u.Service("next", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "used"} }).AwaitServers(u.client, u.two)
}
