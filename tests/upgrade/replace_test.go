// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lab"
)

// replacements is how often programs are exchanged under one load.
const replacements = 24

// Programs are exchanged for others with other knobs over the same tables: every datagram that is sent comes back once, in both
// families and from every kind of client, and no connection notices.
func TestReplacingProgramsUnderLoadLosesNoPacket(t *testing.T) {
	for name, flags := range methods() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, flags...)
			r.become(ours)
			s := service(1)
			r.publish(s, r.near, r.far)
			r.awaitServers(s, "near", "far")
			kept := r.holdAll(s)
			l := r.load()
			streams := []*datagrams{}
			for _, client := range r.clients() {
				for _, six := range []bool{false, true} {
					d := r.stream(s, client, six)
					streams = append(streams, d)
					l.repeat(d.exchange)
				}
			}
			for _, h := range kept {
				l.repeat(h.same)
			}
			l.more(some)
			r.become(ours, "--socket-lb=all") // another agent, with other knobs
			r.must(r.agent.Kill())
			r.exchangePrograms(flags, func() { l.more(40) })
			r.become(ours)
			l.more(some)
			l.end()
			for _, d := range streams {
				d.check(t)
			}
			if dropped := r.dropped(); len(dropped) > 0 {
				t.Errorf("dropped: %v", dropped)
			}
		})
	}
}

// exchangePrograms puts two loads of the programs in each other's place, by turns, as agents would.
func (r *rig) exchangePrograms(flags []string, between func()) {
	r.t.Helper()
	force := attach.Method("")
	if len(flags) > 0 {
		force = attach.Method(flags[1])
	}
	err := r.Mounted(func() error {
		return r.here.Do(func() error {
			var turns []func() error
			for _, every := range []uint8{0, 1} {
				sync, err := r.syncer(force, every)
				if err != nil {
					return err
				}
				turns = append(turns, sync)
			}
			for i := range replacements {
				if err := turns[i%len(turns)](); err != nil {
					return err
				}
				between()
			}
			return nil
		})
	})
	r.must(err)
}

// syncer loads the programs with a knob and gives what attaches them in the place of whatever is there.
func (r *rig) syncer(force attach.Method, every uint8) (func() error, error) {
	pinPath := r.here.PinPath()
	objects, err := bpf.Load(bpf.Options{PinPath: pinPath, Knobs: map[string]any{"every_namespace": every}})
	if err != nil {
		return nil, err
	}
	r.t.Cleanup(func() { objects.Close() })
	devices, err := attach.New(attach.Options{
		LinkDir: bpf.LinkDirectory(pinPath), QdiscDir: bpf.QdiscDirectory(pinPath), Force: force,
		NodeAddresses: func() []netip.Addr { return []netip.Addr{r.here.Address(false), r.here.Address(true)} },
		Programs:      attach.Programs{FromPod: objects.FromPod, ToPod: objects.ToPod, FromNet: objects.FromNet, ToNet: objects.ToNet, Layer3: objects.Layer3},
	})
	if err != nil {
		return nil, err
	}
	sockets, err := attach.NewSocketHooks(attach.SocketOptions{Mode: attach.HostSockets, Cgroup: r.here.Cgroup(), LinkDir: bpf.LinkDirectory(pinPath),
		Programs: objects.NearlbPrograms.ByName()})
	if err != nil {
		return nil, err
	}
	return func() error { return errors.Join(devices.Sync(), sockets.Sync()) }, nil
}

// datagrams is a stream of numbered datagrams over one socket, several of which are on the way at a time.
type datagrams struct {
	*lab.Conn
	name       string
	next       uint64
	sent, back atomic.Int64
	twice      atomic.Int64
}

const window = 16

func (r *rig) stream(s lab.Service, client host, six bool) *datagrams {
	r.t.Helper()
	conn, err := client.Dial(context.Background(), "udp", r.address(s, client, way{"udp", six}), lab.DialOptions{})
	r.must(err)
	r.t.Cleanup(func() { _ = conn.Close() })
	return &datagrams{Conn: conn, name: fmt.Sprintf("%s, IPv6 %v", client, six)}
}

// exchange sends a window of datagrams and reads as many answers.
func (d *datagrams) exchange() error {
	outstanding := map[uint64]bool{}
	for range window {
		d.next++
		if _, err := d.Write(binary.BigEndian.AppendUint64(nil, d.next)); err != nil {
			return fmt.Errorf("stream of %s: %w", d.name, err)
		}
		outstanding[d.next] = true
		d.sent.Add(1)
	}
	buffer := make([]byte, 2048)
	for len(outstanding) > 0 {
		if err := d.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		n, err := d.Read(buffer)
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = fmt.Errorf("%d of %d datagrams are lost", len(outstanding), window)
			}
			return fmt.Errorf("stream of %s: %w", d.name, err)
		}
		_, copied, err := lab.ParseDatagram(buffer[:n])
		if err != nil || len(copied) != 8 {
			return fmt.Errorf("stream of %s: %q is no answer: %w", d.name, buffer[:n], err)
		}
		number := binary.BigEndian.Uint64(copied)
		if !outstanding[number] {
			d.twice.Add(1)
		}
		delete(outstanding, number)
		d.back.Add(1)
	}
	return nil
}

func (d *datagrams) check(t *testing.T) {
	t.Helper()
	if d.sent.Load() != d.back.Load() || d.twice.Load() > 0 {
		t.Errorf("stream of %s: %d sent, %d back, %d of them twice", d.name, d.sent.Load(), d.back.Load(), d.twice.Load())
	}
}
