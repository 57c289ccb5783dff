// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// A stage of an upgrade, as it shows under the pin path.
type stage struct {
	name    string
	reached func(r *rig) bool
}

func stages() []stage {
	with := func(prefix string) func(r *rig) bool {
		return func(r *rig) bool {
			return slices.ContainsFunc(r.generations(), func(name string) bool { return strings.HasPrefix(name, prefix) })
		}
	}
	return []stage{
		{"tables are being made", with("new_")},
		{"tables are in force", with("old_")},
		{"replies are translated twice", func(r *rig) bool { return with("old_")(r) && r.pinned("v*", "*_egress") }},
		{"some requests are translated", func(r *rig) bool { return with("old_")(r) && r.pinned("v*", "*_ingress") }},
		{"the former tables go", func(r *rig) bool { return with("old_")(r) && !r.pinned("old_*", "*") }},
	}
}

// pinned tells whether a generation has such links.
func (r *rig) pinned(generation, link string) bool {
	found := false
	_ = r.Mounted(func() error {
		paths, err := filepath.Glob(filepath.Join(r.here.PinPath(), generation, "links", link))
		found = len(paths) > 0
		return err
	})
	return found
}

// Whoever starts next, of the new layout or the old one, mends what a start that was killed at any stage left, and no
// connection notices.
func TestAnUpgradeKilledAtAnyStageIsMendedByTheNextStart(t *testing.T) {
	r := newRig(t)
	r.become(ours)
	s := service(1)
	r.publish(s, r.near, r.far)
	r.awaitServers(s, "near", "far")
	kept := r.holdAll(s)
	r.publish(s, r.far)
	r.awaitServers(s, "far")
	l := r.load()
	for _, h := range kept {
		l.repeat(h.same)
	}
	l.connect(s, r.clients()...)
	l.more(some)
	now, next := ours, other
	for i, stage := range stages() {
		r.killAt(next, stage)
		l.more(some / 10)
		if i%2 == 0 { // forward, else back
			now, next = next, now
		}
		r.become(now)
		l.more(some / 10)
		if l.failed() > 0 {
			t.Errorf("killed when %s, then layout %s", stage.name, now.name)
			break
		}
	}
	l.end()
}

// killAt starts an agent of another layout than the one in force and kills it at a stage, or as soon as that is over.
func (r *rig) killAt(of layout, at stage) {
	r.t.Helper()
	r.must(r.agent.Kill())
	r.agent = r.start(r.here, of)
	err := lab.Await(patience, func() bool { return at.reached(r) || r.alone(of) })
	r.must(r.agent.Kill())
	if err != nil {
		r.t.Fatalf("%s: %v", at.name, err)
	}
}

// An agent that cannot read its objects serves from what another layout's agent published.
func TestAnUpgradeNeedsNoObjects(t *testing.T) {
	r := newRig(t)
	r.become(ours)
	s := service(1)
	r.publish(s, r.near, r.far)
	r.awaitServers(s, "near", "far")
	kept := r.holdAll(s)
	l := r.load()
	for _, h := range kept {
		l.repeat(h.same)
	}
	l.connect(s, r.clients()...)
	l.more(some)
	r.must(r.agent.Kill())
	nowhere := filepath.Join(r.Dir, "kubeconfig")
	r.must(os.WriteFile(nowhere, []byte(unreachable), 0o600))
	program, err := other.command()
	r.must(err)
	r.agent, err = r.here.StartAgent(lab.AgentOptions{Command: []string{program, "agent"}, Kubeconfig: nowhere,
		Args: append(r.flags, "--snat-ports", "40000-65535")})
	r.must(err)
	if err := lab.Await(patience, func() bool { return r.alone(other) }); err != nil {
		t.Fatalf("upgrade without objects: %v: %v", err, r.generations())
	}
	l.more(some)
	r.become(ours)
	l.more(some)
	l.end()
}

// unreachable names an API server that is not there.
const unreachable = `{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], ` +
	`users: [{name: u, user: {}}], contexts: [{name: c, context: {cluster: c, user: u}}], current-context: c}`

// Tables that cannot be read are served from until the new agent has published everything; connections are made again by
// hash. Those of clients off the node may get another source port then, and are not held here.
func TestTablesThatCannotBeReadServeUntilEverythingIsPublished(t *testing.T) {
	r := newRig(t)
	r.become(ours)
	s := service(1)
	r.publish(s, r.far)
	r.awaitServers(s, "far")
	l := r.load()
	for _, w := range ways() {
		l.repeat(r.hold(s, r.pod, w, "far").same)
	}
	l.connect(s, r.pod, r.here)
	l.more(some)
	r.must(r.agent.Kill())
	r.must(r.Mounted(func() error { return os.Remove(filepath.Join(r.here.PinPath(), ours.name, "maps", "names")) }))
	r.agent = r.start(r.here, other)
	r.awaitSettled(other)
	l.more(some)
	l.end()
	log, err := os.ReadFile(r.agent.Log)
	r.must(err)
	if !strings.Contains(string(log), "tables of another layout cannot be read") {
		t.Error("the agent does not say that it starts anew")
	}
}
