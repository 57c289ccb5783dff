// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// A UDP client that keeps its port follows its Service: from nobody to the first pod, to the next one when that is gone, through
// the ClusterIP with either policy, through a NodePort, from a pod, a node and from outside.
func TestAUDPClientFollowsAsPodsComeAndGo(t *testing.T) {
	c := rig.Shared(t)
	c.MayDrop("drop_no_local_endpoints")
	local := corev1.ServiceInternalTrafficPolicyLocal
	web := c.Service("web", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort; nodePorts(s, 9160) })
	near := c.Service("near", func(s *corev1.Service) {
		s.Spec.Selector, s.Spec.InternalTrafficPolicy = map[string]string{"app": "web"}, &local
	})
	client, off := c.Client(0, "client"), c.Outside()
	var all []*follower
	for _, six := range []bool{false, true} {
		all = append(all,
			follow(c, client, web.OnClusterIP(), six, 20001), follow(c, client, near.OnClusterIP(), six, 20002),
			follow(c, c.Node(0), web.OnClusterIP(), six, 0), follow(c, off, rig.AtHost(c.Node(0), 9160), six, 20003))
	}
	unready := c.NewPod(rig.PodOptions{App: "web", Name: "one", Node: 0, NotReady: true})
	for _, f := range all {
		f.exchange() // of no use to anybody: there is nobody yet
	}
	unready.SetReady(true)
	for i, next := 0, unready; i < 3; i++ {
		for _, f := range all {
			f.await(next)
		}
		last := next
		next = c.Server("web", []string{"two", "three", "four"}[i], 0)
		last.Finish()
	}
}

// follower is a UDP client with a port of its own.
type follower struct {
	*rig.Cluster
	host rig.Host
	at   rig.At
	six  bool
	port uint16
	conn *lab.Conn
}

func follow(c *rig.Cluster, host rig.Host, at rig.At, six bool, port uint16) *follower {
	return &follower{Cluster: c, host: host, at: at, six: six, port: port}
}

// exchange sends one datagram from the port, from a new socket if the old one was told that its peer is gone.
func (f *follower) exchange() (lab.Answer, error) {
	if f.conn == nil {
		options := lab.DialOptions{LocalPort: f.port, Patience: time.Second}
		conn, err := f.host.Dial(f.T.Context(), "udp", f.at(f.six), options)
		if err != nil {
			return lab.Answer{}, err
		}
		f.conn = conn
	}
	answer, _, err := f.conn.Exchange([]byte("who"))
	if err != nil {
		_ = f.conn.Close()
		f.conn = nil
	}
	return answer, err
}

func (f *follower) await(want *rig.Pod) {
	f.T.Helper()
	f.Await("UDP client of "+f.host.String()+" port reaches "+want.Object, func() bool {
		answer, err := f.exchange()
		return err == nil && answer.Server == want.Host.Name
	})
}
