// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"testing"

	"github.com/nearlb/nearlb/tests/privileged"
)

// whenPinned is a log that calls a function as a link has been pinned, in the middle of a Sync.
type whenPinned struct {
	slog.Handler
	do func()
}

func (w whenPinned) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "pinned link" {
		w.do()
	}
	return nil
}

func (whenPinned) Enabled(context.Context, slog.Level) bool { return true }

// An agent may be killed at any moment: what a device's packets meet stays there, so a program of ours is under a link that is pinned. What an
// agent leaves that was killed between the two, the next one puts right.
func TestALinkIsPinnedBeforeItsProgramSeesAPacket(t *testing.T) {
	if !privileged.TCX(t) {
		t.Skip("this kernel has no TCX")
	}
	inNode(t, func(n *node) {
		pod := n.pod("pod1", 0)
		killed := []string{}
		first := n.manager(func(o *Options) {
			o.Log = slog.New(whenPinned{do: func() {
				n.sees(pod, false)
				killed = append(killed, n.pinned()[len(killed)])
				if len(killed) == 2 {
					panic("killed")
				}
			}})
		})
		func() {
			defer func() {
				if r := recover(); r != "killed" {
					t.Fatalf("Sync ended with %v after links %v were pinned", r, killed)
				}
			}()
			n.must(first.Sync())
		}()
		if want := []string{"egress", "ingress"}; !slices.EqualFunc(killed, want, func(pin, direction string) bool {
			k, ok := parsePin(pin)
			return ok && k.direction == direction
		}) {
			t.Errorf("links %v were pinned, want those of %v", killed, want)
		}
		left := n.rows()
		n.sees(pod, false)
		n.must(n.manager(nil).Sync())
		for i, row := range n.rows() {
			if row.Link != left[i].Link {
				t.Errorf("%s has link %d, want %d, which was left", row.Program, row.Link, left[i].Link)
			}
		}
		n.sees(pod, true)
	})
}

// sees sends packets from a pod and wants the node's programs to see all of them, or none.
func (n *node) sees(pod *os.File, all bool) {
	n.Helper()
	before := n.counted()
	want := before + map[bool]uint64{true: 1}[all]*n.sendFrom(pod, 20)
	if got := n.settled(want); got != want {
		n.Errorf("%d packets were seen, want %d", got-before, want-before)
	}
}
