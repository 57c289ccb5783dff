// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// summaryDocument is `kubectl nearlb status -o json`.
type summaryDocument struct {
	Versions map[string]int `json:"versions"` // how many nodes have an agent of a version
	Nodes    []nodeSummary  `json:"nodes"`
	Disagree []disagreement `json:"disagree"` // Services whose backends are not the same on all nodes
	Compared bool           `json:"compared"`
}

// nodeSummary is what a node's status comes to.
type nodeSummary struct {
	Node     string   `json:"onNode"`
	State    string   `json:"state"`    // serving, starting, stopped, dead, stale, unknown; "" where the node could not be asked
	Seen     string   `json:"lastSeen"` // when the agent last said that all this is so
	Version  string   `json:"version"`
	Services int      `json:"services"`
	Waiting  int      `json:"waiting"`
	Failing  []string `json:"failing"`
	Problems int      `json:"problems"`
	Wrong    []string `json:"wrong"`   // the first of these problems
	Fullest  string   `json:"fullest"` // table
	Fill     float64  `json:"fill"`    // of that table, of 1
	Draining bool     `json:"draining"`
	Trouble  []string `json:"trouble"`
	Error    string   `json:"error"` // why it could not be asked
}

// disagreement is a Service, with the nodes that have the same backends for it: those of most nodes first.
type disagreement struct {
	Service string     `json:"service"`
	Nodes   [][]string `json:"nodes"`
}

// nodeStatus is what is needed of `nearlb status -o json`.
type nodeStatus struct {
	Agent *struct {
		Version  string `json:"version"`
		State    string `json:"state"`
		Running  bool   `json:"running"`
		Stale    bool   `json:"stale"`
		Services int    `json:"services"`
		Dirty    int    `json:"dirty"`
		Failing  []struct {
			Service string `json:"service"`
			Error   string `json:"error"`
		} `json:"failing"`
		Written  string `json:"written"`
		Problems []struct {
			Object  string `json:"object"`
			Field   string `json:"field"`
			Message string `json:"message"`
		} `json:"problems"`
		Trouble []string `json:"trouble"`
	} `json:"agent"`
	Unknown string `json:"unknown"`
	Tables  []struct {
		Table string  `json:"table"`
		Used  float64 `json:"used"`
		Limit float64 `json:"limit"`
	} `json:"tables"`
	Draining bool `json:"draining"`
}

// summary puts the status of all nodes into one screen.
func (a *asked) summary(ctx context.Context, agents []agent) (failed bool, err error) {
	doc := summaryDocument{Versions: map[string]int{}, Nodes: []nodeSummary{}, Disagree: []disagreement{}, Compared: a.compare}
	answers := a.ask(ctx, agents, []string{"status", "-o", "json"}, nil)
	for _, answer := range answers {
		n := summarize(answer)
		doc.Nodes = append(doc.Nodes, n)
		if n.Version != "" {
			doc.Versions[n.Version]++
		}
		failed = failed || n.Error != "" || n.State != "serving" || len(n.Failing) > 0
	}
	if a.compare {
		if doc.Disagree, err = a.disagreements(ctx, agents); err != nil {
			return true, err
		}
	}
	failed = failed || len(doc.Disagree) > 0
	switch a.output {
	case "json", "yaml", "jsonl":
		err = doc.encode(a.out, a.output)
	case "", "table", "wide":
		doc.write(a.out)
	default:
		err = usagef("-o %s: want table, json, jsonl or yaml", a.output)
	}
	return failed, err
}

// problemsNamed is how many problems of objects are named of a node, and on the screen.
const problemsNamed = 5

func summarize(answer *answer) nodeSummary {
	n := nodeSummary{Node: answer.node, Failing: []string{}, Wrong: []string{}, Trouble: []string{}}
	var s nodeStatus
	switch err := json.Unmarshal(answer.out.Bytes(), &s); {
	case answer.err != nil:
		n.Error = answer.err.Error()
	case err != nil && answer.said != "":
		n.Error = strings.ReplaceAll(answer.said, "\n", "; ")
	case err != nil:
		n.Error = "its status is no JSON: " + err.Error()
	}
	if n.Error != "" {
		return n
	}
	for _, t := range s.Tables {
		if t.Limit > 0 && t.Used/t.Limit > n.Fill {
			n.Fullest, n.Fill = t.Table, t.Used/t.Limit
		}
	}
	n.Draining = s.Draining
	if s.Agent == nil {
		n.State, n.Trouble = "unknown", append(n.Trouble, s.Unknown)
		return n
	}
	n.Version, n.Services, n.Waiting, n.Problems = s.Agent.Version, s.Agent.Services, s.Agent.Dirty, len(s.Agent.Problems)
	n.Seen = s.Agent.Written
	for _, p := range s.Agent.Problems[:min(len(s.Agent.Problems), problemsNamed)] {
		n.Wrong = append(n.Wrong, fmt.Sprintf("%s: %s: %s", p.Object, p.Field, p.Message))
	}
	n.Trouble = append(n.Trouble, s.Agent.Trouble...)
	for _, f := range s.Agent.Failing {
		n.Failing = append(n.Failing, f.Service+": "+f.Error)
	}
	switch {
	case s.Agent.State == "stopped":
		n.State = "stopped"
	case !s.Agent.Running:
		n.State = "dead"
	case s.Agent.Stale:
		n.State = "stale"
	default:
		n.State = s.Agent.State
	}
	return n
}

// disagreements compares the backends of all Services. What differs is looked at once more: a change is on its way to some nodes.
func (a *asked) disagreements(ctx context.Context, agents []agent) ([]disagreement, error) {
	first := a.compareOnce(ctx, agents)
	if len(first) == 0 {
		return []disagreement{}, nil
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(settled):
	}
	var names []string
	for _, d := range first {
		names = append(names, d.Service)
	}
	return slices.DeleteFunc(a.compareOnce(ctx, agents), func(d disagreement) bool { return !slices.Contains(names, d.Service) }), nil
}

// settled is how long a change may take to reach all nodes.
const settled = 2 * time.Second

func (a *asked) compareOnce(ctx context.Context, agents []agent) []disagreement {
	sums := make([]*backendSums, len(agents))
	byNode := map[string]*backendSums{}
	for i, agent := range agents {
		sums[i] = &backendSums{of: map[string]uint64{}}
		byNode[agent.node] = sums[i]
	}
	answers := a.ask(ctx, agents, []string{"backends", "-o", "jsonl"}, func(node string) io.Writer { return byNode[node] })
	services := map[string]bool{}
	var answered []int
	for i, answer := range answers {
		if answer.err != nil || answer.status != 0 || sums[i].bad {
			continue // its status has said so
		}
		answered = append(answered, i)
		for name := range sums[i].of {
			services[name] = true
		}
	}
	out := []disagreement{}
	for _, service := range slices.Sorted(maps.Keys(services)) {
		ways := map[uint64][]string{}
		for _, i := range answered {
			sum := sums[i].of[service]
			ways[sum] = append(ways[sum], agents[i].node)
		}
		if len(ways) > 1 {
			d := disagreement{Service: service, Nodes: slices.Collect(maps.Values(ways))}
			slices.SortFunc(d.Nodes, func(a, b []string) int {
				if len(a) != len(b) {
					return len(b) - len(a)
				}
				return slices.Compare(a, b)
			})
			out = append(out, d)
		}
	}
	return out
}

// backendSums has for each Service the sum of hashes of its backends: the same for the same ones in any order. It takes lines of
// `nearlb backends -o jsonl`, and keeps none.
type backendSums struct {
	of   map[string]uint64
	rest []byte
	bad  bool
}

// Write is io.Writer's.
func (s *backendSums) Write(text []byte) (int, error) {
	s.rest = append(s.rest, text...)
	for {
		end := bytes.IndexByte(s.rest, '\n')
		if end < 0 {
			return len(text), nil
		}
		s.add(s.rest[:end])
		s.rest = s.rest[end+1:]
	}
}

// add takes what must be the same on all nodes: which backends there are, and whether they serve. Nearness differs, as do numbers.
func (s *backendSums) add(line []byte) {
	var row struct {
		Service     string `json:"service"`
		Port        string `json:"port"`
		Protocol    string `json:"protocol"`
		Address     string `json:"address"`
		BackendPort int    `json:"backendPort"`
		State       string `json:"state"`
	}
	if err := json.Unmarshal(line, &row); err != nil {
		s.bad = true
		return
	}
	if row.State == "gone" || row.State == "responder" {
		return
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\n%s\n%s %d\n%s", row.Port, row.Protocol, row.Address, row.BackendPort, row.State)
	s.of[row.Service] += h.Sum64() | 1
}

func (d *summaryDocument) encode(w io.Writer, format string) error {
	text, err := json.MarshalIndent(d, "", "  ")
	switch {
	case err != nil:
		return err
	case format == "yaml":
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	case format == "jsonl":
		text, err = json.Marshal(d)
	}
	if err == nil {
		_, err = fmt.Fprintf(w, "%s\n", text)
	}
	return err
}

// write prints the screen: what all have in common, a line for each node, and what is wrong.
func (d *summaryDocument) write(w io.Writer) {
	serving := 0
	for _, n := range d.Nodes {
		if n.State == "serving" {
			serving++
		}
	}
	var versions []string
	for _, v := range slices.Sorted(maps.Keys(d.Versions)) {
		versions = append(versions, fmt.Sprintf("%s on %d", printable(v), d.Versions[v]))
	}
	fmt.Fprintf(w, "nodes     %d, an agent serves on %d\n", len(d.Nodes), serving)
	fmt.Fprintf(w, "versions  %s\n\n", or(strings.Join(versions, ", "), "-"))
	rows := [][]string{{"NODE", "AGENT", "VERSION", "SERVICES", "WAITING", "FAILING", "PROBLEMS", "FULLEST TABLE"}}
	for _, n := range d.Nodes {
		state, fullest := or(n.State, "not asked"), "-"
		if n.Draining {
			state += ", draining"
		}
		if n.Fullest != "" {
			fullest = fmt.Sprintf("%s %.0f %%", n.Fullest, 100*n.Fill)
		}
		row := []string{n.Node, state, or(n.Version, "-"), fmt.Sprint(n.Services), fmt.Sprint(n.Waiting), fmt.Sprint(len(n.Failing)), fmt.Sprint(n.Problems), fullest}
		if n.Version == "" { // no agent says any of these
			row = []string{n.Node, state, "-", "-", "-", "-", "-", fullest}
		}
		rows = append(rows, row)
	}
	writeAligned(w, true, rows)
	d.writeWrong(w)
	for _, one := range d.Disagree {
		var ways []string
		for _, nodes := range one.Nodes {
			ways = append(ways, names(nodes))
		}
		fmt.Fprintln(w)
		_ = writeFolded(w, fmt.Sprintf("disagree: the backends of %s are not the same on %s", one.Service, strings.Join(ways, " | ")))
	}
}

// writeWrong prints what is wrong on nodes, once for those where it is the same.
func (d *summaryDocument) writeWrong(w io.Writer) {
	said := map[string][]string{}
	var order []string
	say := func(text, node string) {
		if said[text] == nil {
			order = append(order, text)
		}
		said[text] = append(said[text], node)
	}
	wrong := map[string]bool{}
	more := 0
	for _, n := range d.Nodes {
		switch {
		case n.Error != "":
			say("cannot be asked: "+n.Error, n.Node)
		case n.State == "stale" || n.State == "dead" || n.State == "stopped":
			say(n.State+": the agent was last seen at "+or(n.Seen, "no time that is known")+"; what it published goes on serving", n.Node)
		}
		for _, f := range n.Failing {
			say("failing: "+f, n.Node)
		}
		for _, t := range n.Trouble {
			say("trouble: "+t, n.Node)
		}
		more = max(more, n.Problems-len(n.Wrong))
		for _, text := range n.Wrong {
			if len(wrong) < problemsNamed || wrong[text] {
				wrong[text] = true
				say("problem: "+text, n.Node)
			} else {
				more = max(more, 1)
			}
		}
	}
	for _, text := range order {
		fmt.Fprintln(w)
		_ = writeFolded(w, names(said[text])+": "+strings.ReplaceAll(text, "\n", "; ")) // who reads went away
	}
	if more > 0 {
		fmt.Fprintln(w)
		_ = writeFolded(w, "There are more problems: nearlb status in a node's pod (kubectl exec) lists all of that node")
	}
}

func or(text, other string) string {
	if text == "" {
		return other
	}
	return text
}
