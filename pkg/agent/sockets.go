// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/capability"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/sockdiag"
)

// socketMode is the one asked for, where the kernel has what it takes.
func (r *running) socketMode() attach.SocketMode {
	if r.objects.SocketHooks != nil || r.plan.waiting {
		return attach.NoSockets
	}
	return r.daemon.options.SocketLB
}

// tellOfSockets says whom nobody serves.
func (r *running) tellOfSockets() {
	err := r.objects.SocketHooks
	if err == nil {
		r.tellOfPods()
		return
	}
	err = fmt.Errorf("the kernel lacks what it takes, so that only pods and clients off the node are: %w", err)
	if r.trouble("serve the node's own clients", err) {
		r.daemon.log.Error("serve the node's own clients", "error", err)
	}
}

// tellOfPods says at the start what will hide the sockets of pods once a backend leaves.
func (r *running) tellOfPods() {
	if r.daemon.options.SocketLB != attach.AllSockets {
		return
	}
	has, err := capability.Effective()
	if err == nil {
		err = hidesPods(os.Getpid(), has)
	}
	if r.trouble("find UDP clients in pods", err) {
		r.daemon.log.Error("find UDP clients in pods", "error", err)
	}
}

// hidesPods says what keeps a process of this number, in its own eyes, from the sockets of others' network namespaces. The first
// one of all would be the machine's init, so that a first one which is an agent is in a namespace of processes of its own.
func hidesPods(pid int, has capability.Set) error {
	var lacks []string
	if pid == 1 {
		lacks = append(lacks, "the host's processes (hostPID: true)")
	}
	lacks = append(lacks, (capability.Of(unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE) &^ has).Names()...)
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("--socket-lb=all lacks %s: those whose backend leaves go on sending to it", strings.Join(lacks, ", "))
}

func (r *running) socketOptions() attach.SocketOptions {
	return attach.SocketOptions{
		Mode:    r.socketMode(),
		Cgroup:  r.daemon.options.Cgroup,
		LinkDir: bpf.LinkDirectory(r.daemon.options.PinPath),
		Former:  r.formerLinks,
		Log:     r.daemon.log,
		Synced:  func() { r.turn(); r.leaveFormer() },
	}
}

// serveSockets keeps the programs of the node's own clients attached, from the same moment on as those of devices.
func (r *running) serveSockets(ctx context.Context) error {
	if published, err := r.published(ctx); !published {
		return err
	}
	return r.socketHooks.Run(ctx)
}

// leftAgain is when sockets are looked at once more: one that was connecting had its backend already, but was no connected
// socket yet.
const leftAgain = time.Second

// leaveBackends ends the connected UDP sockets of clients whose backend stopped serving, whenever one did. They would go on
// sending to it, as no program sees their datagrams. TCP notices by itself.
func (r *running) leaveBackends(ctx context.Context) error {
	if r.socketMode() == attach.NoSockets || !r.programmed(ctx) {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.left:
		}
		r.endSockets()
		pause(ctx, leftAgain)
		r.endSockets()
	}
}

func (r *running) endSockets() {
	ended, err := r.endAbandoned()
	if err != nil {
		err = fmt.Errorf("end sockets of UDP clients whose backend is gone: %w", err)
	}
	if r.trouble("end sockets", err) {
		r.daemon.log.Error("end sockets", "error", err)
	}
	if ended > 0 {
		r.daemon.log.Info("ended sockets of UDP clients whose backend is gone", "sockets", ended)
	}
}

func (r *running) endAbandoned() (ended int, err error) {
	err = r.everywhere(func() error {
		n, err := r.endAbandonedHere()
		ended += n
		return err
	})
	return ended, err
}

// everywhere calls a function in each network namespace whose clients the hooks of sockets serve.
func (r *running) everywhere(call func() error) error {
	if r.daemon.options.SocketLB == attach.AllSockets {
		return sockdiag.Everywhere(call)
	}
	return call()
}

// endAbandonedHere does it in the network namespace of the calling thread.
func (r *running) endAbandonedHere() (int, error) {
	peers, err := maps.Peers(r.programs.SockPeers)
	if err != nil || len(peers) == 0 {
		return 0, err
	}
	return sockdiag.End(netns.None(), func(cookie uint64, remote netip.AddrPort) bool {
		peer, ours := peers[cookie]
		return ours && r.daemon.reader.abandoned(remote, peer)
	})
}

// servingUDP are the backends that UDP clients of a decision may be connected to, in its order.
func servingUDP(d *lb.Decision) (keys []lb.BackendKey) {
	for i := range d.Backends {
		b := &d.Backends[i]
		if b.Key.Port.Protocol == lb.UDP && b.State != lb.Quiet {
			keys = append(keys, b.Key)
		}
	}
	return keys
}

// leavesClients tells whether some of the backends of before do not serve any more.
func leavesClients(before, after []lb.BackendKey) bool {
	return slices.ContainsFunc(before, func(b lb.BackendKey) bool {
		_, serves := slices.BinarySearchFunc(after, b, lb.BackendKey.Compare)
		return !serves
	})
}
