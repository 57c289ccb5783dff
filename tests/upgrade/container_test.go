// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/daemonset"
)

// An upgrade and the way back want no more than the DaemonSet gives, of which part is dropped before they come to their end:
// all is carried over, what sockets of the node keep included.
func TestConnectionsOutliveAnUpgradeAndADowngradeOfTheDaemonSet(t *testing.T) {
	r := newRig(t)
	r.contain()
	kept := r.upgradeAndBack()

	log, err := os.ReadFile(r.agent.Log)
	r.must(err)
	carried, dropped := []string{}, 0
	for line := range strings.Lines(string(log)) {
		line = strings.TrimSpace(line)
		if _, layout, found := strings.Cut(line, `msg="carried tables over from another layout" layout=`); found {
			carried = append(carried, layout)
		}
		if strings.Contains(line, "capabilities=CAP_NET_BIND_SERVICE,CAP_NET_ADMIN,CAP_BPF") {
			dropped++
		}
		if (strings.Contains(line, "another layout") || strings.Contains(line, "carry")) && !strings.Contains(line, "level=INFO") {
			t.Errorf("an agent says: %s", line)
		}
	}
	if want := []string{ours.name, other.name}; !slices.Equal(carried, want) || dropped != 3 {
		t.Errorf("tables of %v were carried over, want those of %v; %d agents dropped what they do not keep, want 3", carried, want, dropped)
	}
	for _, h := range kept {
		if peer, err := h.peer(); err != nil || peer != h.Remote() {
			t.Errorf("%s: its peer is %v, %v; it was connected to %v", h.name, peer, err, h.Remote())
		}
	}
}

// peer asks the kernel whom the socket is connected to. A program answers for the node's own, with what the socket keeps.
func (h *held) peer() (peer netip.AddrPort, err error) {
	raw, err := h.Conn.Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return peer, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		var address unix.Sockaddr
		switch address, err = unix.Getpeername(int(fd)); a := address.(type) {
		case *unix.SockaddrInet4:
			peer = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
		case *unix.SockaddrInet6:
			peer = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
		}
	})
	return peer, errors.Join(controlErr, err)
}

// container is how a kubelet would run agents by the DaemonSet, but for the objects, which come from the lab's directory.
type container struct {
	set daemonset.Set
	pod daemonset.Pod
}

// contain has agents that are started here from now on run in the DaemonSet's container.
func (r *rig) contain() {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "manifests", "base", "daemonset.yaml"))
	r.must(err)
	c := &container{}
	c.set, err = daemonset.Read(text)
	r.must(err)
	c.pod.Host, err = daemonset.Hostlike(r.Lab, r.here)
	r.must(err)
	c.pod.Extra = map[string]string{"/manifests": r.Manifests.Dir}
	r.container = c
}

func (c *container) start(n *lab.Node, of layout, flags []string) (*lab.Process, error) {
	set, pod := c.set, c.pod
	var err error
	if pod.Program, err = of.image(); err != nil {
		return nil, err
	}
	set.Agent.Args = slices.Concat(set.Agent.Args, []string{"--manifests=/manifests"}, flags)
	return set.Start(n, pod)
}

// pins is the host's directory that the container's pins are in.
func (c *container) pins() string { return filepath.Join(c.pod.Host["/sys/fs/bpf"], "nearlb") }

func (c *container) status() (agent.Status, error) {
	return agent.ReadStatus(c.pod.Host["/run/nearlb"], daemonset.PinPath)
}
