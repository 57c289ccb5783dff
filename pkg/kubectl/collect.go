// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// collected are the commands whose answers a bundle has, of each node, by the file's name. None shows what packets carry.
var collected = map[string][]string{
	"version.json":           {"version", "-o", "json"},
	"status.json":            {"status", "-o", "json"},
	"check.json":             {"check", "-o", "json"},
	"services.jsonl":         {"services", "-o", "jsonl"},
	"backends.jsonl":         {"backends", "-o", "jsonl"},
	"flows-by-service.jsonl": {"flows", "--group-by", "service", "-o", "jsonl"},
	"verdicts.jsonl":         {"verdicts", "-o", "jsonl"},
	"devices.jsonl":          {"devices", "-o", "jsonl"},
	"zones.jsonl":            {"zones", "-o", "jsonl"},
	"drops.jsonl":            {"drops", "-o", "jsonl"},
	"changes.jsonl":          {"changes", "-o", "jsonl"},
}

// firstAsked is asked for before the others: who cannot be asked for that cannot be asked at all, and each question would wait in vain.
const firstAsked = "version.json"

func inOrder() []string {
	rest := slices.DeleteFunc(slices.Sorted(maps.Keys(collected)), func(name string) bool { return name == firstAsked })
	return slices.Insert(rest, 0, firstAsked)
}

// without has the agents that did not answer lack what they said.
func without(agents []agent, answers []*answer) []agent {
	agents = slices.Clone(agents)
	for i, answer := range answers {
		if answer.err != nil {
			agents[i].lack = answer.err
		}
	}
	return agents
}

const (
	longestFile = 32 << 20 // bytes of one answer or log; what is more is cut off, and said
	nodesAtOnce = 10       // whose answers are in memory
	logLines    = "5000"
)

// collect writes the support bundle: an archive with what every node, and the API server about the agents, says. What cannot be had is
// named in it, and told.
func (a *asked) collect(ctx context.Context, agents []agent, now time.Time) (failed bool, err error) {
	name := a.file
	if name == "" {
		name = "nearlb-collect-" + now.UTC().Format("20060102T150405Z") + ".tar.gz"
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // names and addresses of a cluster are in it
	if err != nil {
		return false, fmt.Errorf("write the bundle: %w", err)
	}
	b := newBundle(file, now, a.mask)
	failed, err = a.fill(ctx, agents, b)
	if err = errors.Join(err, b.close(), file.Close()); err != nil {
		return failed, errors.Join(fmt.Errorf("write %s: %w", name, err), os.Remove(name))
	}
	_, err = fmt.Fprintf(a.out, "%s: %d nodes, %d files\n", name, len(agents), b.files)
	return failed, err
}

func (a *asked) fill(ctx context.Context, agents []agent, b *bundle) (failed bool, err error) {
	lacks := a.aboutAgents(ctx, b)
	var all []*answer
	for group := range slices.Chunk(agents, nodesAtOnce) {
		errs := map[string]*strings.Builder{}
		for _, agent := range group {
			errs[agent.node] = &strings.Builder{}
		}
		for _, name := range inOrder() {
			answers := a.ask(ctx, group, collected[name], nil)
			for i, answer := range answers {
				if group[i].lack != nil && name != firstAsked {
					continue
				}
				b.add(path.Join("nodes", answer.node, name), answer.out.Bytes())
				switch {
				case answer.err != nil:
					fmt.Fprintf(errs[answer.node], "%s: %v\n", name, answer.err)
				case answer.status != 0 || answer.said != "":
					fmt.Fprintf(errs[answer.node], "%s: exit status %d: %s\n", name, answer.status, answer.said)
				}
			}
			if name == firstAsked {
				all, group = append(all, answers...), without(group, answers)
			}
		}
		for _, agent := range group {
			a.logs(ctx, agent, b, errs[agent.node])
			b.add(path.Join("nodes", agent.node, "errors.txt"), []byte(errs[agent.node].String()))
		}
		if err := ctx.Err(); err != nil {
			return true, err
		}
	}
	b.add("errors.txt", []byte(lacks))
	failed, _ = a.tell(all)
	return failed, b.err
}

// aboutAgents has what the API server knows of them: their DaemonSets, Pods and configuration. It gives what could not be read.
func (a *asked) aboutAgents(ctx context.Context, b *bundle) (lacks string) {
	b.add("plugin.txt", []byte("kubectl-nearlb "+version+"\n"))
	labels := url.Values{"labelSelector": {a.selector}}
	for name, from := range map[string]struct {
		path  string
		query url.Values
	}{
		"daemonsets.json": {"apis/apps/v1/namespaces/" + a.agents + "/daemonsets", labels},
		"configmap.json":  {"api/v1/namespaces/" + a.agents + "/configmaps/nearlb-config", url.Values{}},
		"server.json":     {"version", url.Values{}},
	} {
		var object json.RawMessage
		if err := a.get(ctx, from.path, from.query, &object); err != nil {
			lacks += name + ": " + err.Error() + "\n"
			continue
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, object, "", "  "); err != nil {
			lacks += name + ": " + err.Error() + "\n"
			continue
		}
		b.add(name, indented.Bytes())
	}
	pods, err := list[json.RawMessage](ctx, a.cluster, "api/v1/namespaces/"+a.agents+"/pods", labels)
	if err == nil {
		var text []byte
		text, err = json.MarshalIndent(pods, "", "  ")
		b.add("pods.json", text)
	}
	if err != nil {
		lacks += "pods.json: " + err.Error() + "\n"
	}
	return lacks
}

// logs are the agent's, and those of the one before it in its pod, if there was one.
func (a *asked) logs(ctx context.Context, agent agent, b *bundle, errs io.Writer) {
	if agent.pod == nil {
		return
	}
	for _, of := range []struct{ name, previous string }{{"agent.log", "false"}, {"agent.previous.log", "true"}} {
		inTime, cancel := context.WithTimeout(ctx, a.timeout) // a kubelet may take the question and say nothing
		text, err := a.log(inTime, agent.pod, url.Values{"container": {a.container}, "tailLines": {logLines}, "timestamps": {"true"}, "previous": {of.previous}})
		cancel()
		b.add(path.Join("nodes", agent.node, of.name), text)
		if err != nil && of.previous == "false" {
			fmt.Fprintf(errs, "%s: %v\n", of.name, err)
			return // there is one before it only where there is one
		}
	}
}

func (c *cluster) log(ctx context.Context, p *pod, query url.Values) ([]byte, error) {
	to := c.base.JoinPath("api/v1/namespaces", p.Metadata.Namespace, "pods", p.Metadata.Name, "log")
	to.RawQuery = query.Encode()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := c.client.Do(ask)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, errors.New(answer.Status)
	}
	return io.ReadAll(io.LimitReader(answer.Body, longestFile))
}

// bundle is an archive that is being written.
type bundle struct {
	zipped *gzip.Writer
	out    *tar.Writer
	now    time.Time
	mask   *mask // nil: addresses are as they are
	files  int
	err    error
}

func newBundle(to io.Writer, now time.Time, masked bool) *bundle {
	b := &bundle{zipped: gzip.NewWriter(to), now: now}
	if b.out = tar.NewWriter(b.zipped); masked {
		b.mask = newMask()
	}
	return b
}

// add writes a file, if there is anything in it.
func (b *bundle) add(name string, text []byte) {
	if len(text) == 0 || b.err != nil {
		return
	}
	if len(text) > longestFile {
		text = append(text[:longestFile:longestFile], "\ncut off here\n"...)
	}
	if b.mask != nil {
		name, text = b.mask.text(name), []byte(b.mask.text(string(text)))
	}
	b.files++
	if b.err = b.out.WriteHeader(&tar.Header{Name: path.Join("nearlb", name), Mode: 0o600, Size: int64(len(text)), ModTime: b.now}); b.err == nil {
		_, b.err = b.out.Write(text)
	}
}

func (b *bundle) close() error {
	return errors.Join(b.out.Close(), b.zipped.Close())
}
