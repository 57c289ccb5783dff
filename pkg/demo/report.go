// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

// report shows the demo to people. Its methods are called by one goroutine, but for follow, which runs until done closes.
type report interface {
	begin(d *demo)
	follow(d *demo, done <-chan struct{})
	step(d *demo, r Result)
	end(d *demo, held Held)
	hold(d *demo)
}

func newReport(o Options) report {
	if o.Interactive {
		return &live{out: o.Out, paint: painter{o.Color}, width: o.Width}
	}
	return &plain{out: o.Out}
}

// tier says how near a server is to a client: same node, same zone, other zone.
func (d *demo) tier(client int, outcome string) string {
	for i, s := range d.servers {
		switch {
		case s.Name != outcome:
		case i == client:
			return "same node"
		case s.Node.Options.Zone == d.nodes[client].Options.Zone:
			return "same zone"
		default:
			return "other zone"
		}
	}
	return ""
}

// brief puts the outcomes of all clients in few words: "web-1 web-2 web-3", "all web-3".
func brief(outcomes []string) string {
	for _, o := range outcomes {
		if o != outcomes[0] {
			return strings.Join(outcomes, " ")
		}
	}
	if len(outcomes) == 0 {
		return ""
	}
	return "all " + outcomes[0]
}

// took is how long the change needed, in few characters.
func took(r Result) string {
	if r.Took == 0 {
		return "-"
	}
	return short(r.Took)
}

func short(t time.Duration) string {
	switch {
	case t < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(t.Microseconds())/1000)
	case t < time.Second:
		return fmt.Sprintf("%d ms", t.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", t.Seconds())
}

// summary is the demo's last word.
func (d *demo) summary(held Held) []string {
	total, bad := d.watch.count()
	steps := fmt.Sprintf("%d of %d steps came out as they should", d.passed(), len(d.steps))
	if d.passed() == len(d.steps) {
		steps = fmt.Sprintf("all %d steps came out as they should", len(d.steps))
	}
	lines := []string{
		fmt.Sprintf("%s, in %s", steps, short(time.Since(d.watch.started))),
		fmt.Sprintf("%d new connections and datagrams: %d lost or wrong", total, bad),
		fmt.Sprintf("%d TCP connections held open since step 1: %d answers, %d lost", held.Open, held.Answers, held.Lost),
	}
	return append(lines, d.failures()...)
}

// passed counts the steps that came out as they should.
func (d *demo) passed() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, r := range d.results {
		if r.OK() {
			n++
		}
	}
	return n
}

// failures says what went wrong and what the agents said last.
func (d *demo) failures() []string {
	if d.passed() == len(d.steps) {
		return nil
	}
	lines := []string{""}
	for _, r := range d.results {
		if !r.OK() {
			lines = append(lines, fmt.Sprintf("step %d, %s: %s; expected %s, seen %s",
				r.Number, r.Title, r.Verdict(), brief(r.Want), brief(r.Seen)))
		}
	}
	for i, agent := range d.agents {
		lines = append(lines, "last words of "+d.nodes[i].Name+"'s agent:")
		lines = append(lines, tail(agent.Log, 5)...)
	}
	return lines
}

// tail is the end of a text file, indented.
func tail(path string, count int) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return []string{"  " + err.Error()}
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	lines = lines[max(0, len(lines)-count):]
	for i := range lines {
		lines[i] = "  " + lines[i]
	}
	return lines
}

// invitation says what can be done with a cluster that is kept.
func (d *demo) invitation() []string {
	self := strings.Join(d.options.Agent.Command[:len(d.options.Agent.Command)-1], " ")
	n := d.nodes[0]
	read := fmt.Sprintf("nsenter --mount=%s --net=%s %s", d.lab.MountPath(), n.Path(), self)
	pin := "--pin-path " + n.PinPath()
	return []string{
		"The cluster is kept until Ctrl-C. As root, in another terminal:",
		"",
		"n1's tables (also: backends, flows, verdicts, devices), and how it does",
		"  " + read + " services " + pin,
		"  " + read + " status " + pin + " --lock-dir " + d.lab.LockDir(),
		"what happens to a packet of n1's client",
		fmt.Sprintf("  %s trace --from pod --src %s --dst %s:%d --proto tcp -o json %s", read, d.clients[0].V4, clusterIP4, servicePort, pin),
		"a shell in n1's client pod, and a request from it",
		"  nsenter --net=" + d.clients[0].Path() + " bash",
		fmt.Sprintf("  exec 3<>/dev/tcp/%s/%d; echo who >&3; head -1 <&3", clusterIP4, servicePort),
		"the objects: edit them, and the agents follow",
		"  " + d.lab.Manifests.Dir + string(os.PathSeparator) + "web.yaml",
		fmt.Sprintf("the agents' logs (n1's agent is process %d)", d.agentPIDs()[0]),
		"  " + d.agents[0].Log,
	}
}

func (d *demo) agentPIDs() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return pids(d.agents)
}

func pids(processes []*lab.Process) []int {
	out := make([]int, len(processes))
	for i, p := range processes {
		out[i] = p.PID()
	}
	return out
}
