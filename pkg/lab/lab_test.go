// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/privileged"
)

const port = 8080

func newLab(t *testing.T, options lab.Options) *lab.Lab {
	t.Helper()
	privileged.Require(t)
	l, err := lab.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(l.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("lab directory after Close: %v", err)
		}
	})
	return l
}

func addNode(t *testing.T, l *lab.Lab, options lab.NodeOptions) *lab.Node {
	t.Helper()
	n, err := l.AddNode(options)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func addPod(t *testing.T, n *lab.Node, name string) *lab.Pod {
	t.Helper()
	p, err := n.AddPod(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPodsReachEachOtherOnOneNodeAndAcrossNodes(t *testing.T) {
	for _, bridge := range []bool{false, true} {
		t.Run(fmt.Sprintf("bridge=%t", bridge), func(t *testing.T) {
			l := newLab(t, lab.Options{})
			near := addNode(t, l, lab.NodeOptions{Name: "n1", Bridge: bridge})
			far := addNode(t, l, lab.NodeOptions{Name: "n2", Bridge: bridge})
			client := addPod(t, near, "client")
			for _, server := range []*lab.Pod{addPod(t, near, "web-1"), addPod(t, far, "web-2")} {
				if _, err := server.Serve(port); err != nil {
					t.Fatal(err)
				}
				for _, six := range []bool{false, true} {
					checkAsk(t, client, server, six)
					checkTransfer(t, client, server, six)
				}
			}
		})
	}
}

func checkAsk(t *testing.T, client, server *lab.Pod, six bool) {
	t.Helper()
	to := netip.AddrPortFrom(server.Address(six), port)
	for _, network := range []string{"tcp", "udp"} {
		answer, err := client.Ask(context.Background(), network, to, lab.DialOptions{})
		if err != nil {
			t.Fatalf("ask %s %s: %v", network, to, err)
		}
		if answer.Server != server.Name || answer.Client.Addr() != client.Address(six) || answer.Local != to {
			t.Errorf("ask %s %s: %+v", network, to, answer)
		}
	}
}

func checkTransfer(t *testing.T, client, server *lab.Pod, six bool) {
	t.Helper()
	to := netip.AddrPortFrom(server.Address(six), port)
	conn, err := client.Dial(context.Background(), "tcp", to, lab.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i := range uint64(2) {
		if err := errors.Join(conn.Get(i, 4<<20+7), conn.Put(i, 4<<20+7)); err != nil {
			t.Error(err)
		}
	}
	datagrams, err := client.Dial(context.Background(), "udp", to, lab.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer datagrams.Close()
	big := make([]byte, 20000)
	_, _ = lab.NewStream(1).Read(big)
	if _, back, err := datagrams.Exchange(big); err != nil || !bytes.Equal(back, big) {
		t.Errorf("exchange a datagram of %d bytes: %d bytes came back, %v", len(big), len(back), err)
	}
}

func TestAPortWithoutServerIsRefusedAndAPingAnswered(t *testing.T) {
	l := newLab(t, lab.Options{})
	n := addNode(t, l, lab.NodeOptions{Name: "n1"})
	client, server := addPod(t, n, "client"), addPod(t, n, "web-1")
	for _, six := range []bool{false, true} {
		for _, network := range []string{"tcp", "udp"} {
			_, err := client.Ask(context.Background(), network, netip.AddrPortFrom(server.Address(six), port), lab.DialOptions{})
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("ask %s: %v", network, err)
			}
		}
		if err := client.Ping(server.Address(six)); err != nil {
			t.Error(err)
		}
	}
}

func TestADeletedPodIsSilent(t *testing.T) {
	l := newLab(t, lab.Options{})
	n := addNode(t, l, lab.NodeOptions{Name: "n1"})
	client, server := addPod(t, n, "client"), addPod(t, n, "web-1")
	if _, err := server.Serve(port); err != nil {
		t.Fatal(err)
	}
	checkAsk(t, client, server, false)
	if err := server.Delete(); err != nil {
		t.Fatal(err)
	}
	if len(n.Pods()) != 1 {
		t.Errorf("pods after delete: %d", len(n.Pods()))
	}
}

func TestARemovedNodeIsGoneWithItsProcessesAndAnotherTakesNoAddressOfIt(t *testing.T) {
	l := newLab(t, lab.Options{})
	stays, goes := addNode(t, l, lab.NodeOptions{Name: "n1"}), addNode(t, l, lab.NodeOptions{Name: "n2"})
	client, server := addPod(t, stays, "client"), addPod(t, goes, "web-1")
	for _, six := range []bool{false, true} {
		if err := client.Ping(server.Address(six)); err != nil {
			t.Fatal(err)
		}
	}
	p, err := goes.Start("sleep", []string{"sleep", "600"})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.RemoveNode(goes); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Ended():
	default:
		t.Error("its process lives")
	}
	if left := l.Nodes(); len(left) != 1 || left[0] != stays {
		t.Errorf("nodes: %v", left)
	}
	for _, six := range []bool{false, true} {
		await(t, func() bool { return client.Ping(server.Address(six)) != nil })
	}
	again := addNode(t, l, lab.NodeOptions{Name: "n2"})
	if again.V4 == goes.V4 || again.V6 == goes.V6 {
		t.Errorf("the next one has the addresses %s, %s again", again.V4, again.V6)
	}
	pod := addPod(t, again, "web-2")
	for _, six := range []bool{false, true} {
		if err := client.Ping(pod.Address(six)); err != nil {
			t.Error(err)
		}
	}
}

func TestAProcessRunsInItsNodeAndDiesWithTheLab(t *testing.T) {
	l := newLab(t, lab.Options{})
	n := addNode(t, l, lab.NodeOptions{Name: "n1"})
	p, err := n.Start("show", []string{"/bin/sh", "-c", "cat /proc/net/dev; ls -d " + l.BPFDir() + "/. && grep " + l.BPFDir() + " /proc/mounts; exec sleep 600"})
	if err != nil {
		t.Fatal(err)
	}
	await(t, func() bool {
		text, err := os.ReadFile(p.Log)
		return err == nil && strings.Contains(string(text), lab.Uplink+":") && strings.Contains(string(text), " bpf ")
	})
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), l.Dir) {
		t.Error("the lab's mounts are seen from outside")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process after Close: %v", err)
	}
}

func TestManifestsAreReplacedWhole(t *testing.T) {
	l := newLab(t, lab.Options{})
	n := addNode(t, l, lab.NodeOptions{Name: "n1", Zone: "a"})
	pod := addPod(t, n, "web-1")
	ports := []lab.Port{{Name: "http", Protocol: "TCP", Port: port}}
	slices := lab.Slices{Service: "web", Ports: ports, Endpoints: []lab.Endpoint{{Pod: pod}}, SameNode: true}
	if err := l.Manifests.Write("web.yaml", slices.Objects()...); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(l.Manifests.Dir + "/web.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{pod.V4.String(), pod.V6.String(), "forNodes", "zone: a", "kubernetes.io/service-name: web"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("manifest has no %q:\n%s", want, text)
		}
	}
	if entries, err := os.ReadDir(l.Manifests.Dir); err != nil || len(entries) != 1 {
		t.Errorf("directory: %v, %v", entries, err)
	}
}

// await polls until the condition holds.
func await(t *testing.T, condition func() bool) {
	t.Helper()
	if err := lab.Await(lab.Patience, condition); err != nil {
		t.Fatal(err)
	}
}

func TestANarrowUplinkIsDiscovered(t *testing.T) {
	const narrow = 1400
	l := newLab(t, lab.Options{})
	client := addPod(t, addNode(t, l, lab.NodeOptions{Name: "n1"}), "client")
	far := addNode(t, l, lab.NodeOptions{Name: "n2"})
	if err := far.SetUplinkMTU(narrow); err != nil {
		t.Fatal(err)
	}
	server := addPod(t, far, "web-1")
	if _, err := server.Serve(port); err != nil {
		t.Fatal(err)
	}
	for _, six := range []bool{false, true} {
		checkTransfer(t, client, server, six)
		conn, err := client.Dial(context.Background(), "tcp", netip.AddrPortFrom(server.Address(six), port), lab.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if mtu, err := conn.PathMTU(); err != nil || mtu != narrow {
			t.Errorf("path MTU %d, %v", mtu, err)
		}
	}
}
