// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearlb/nearlb/pkg/plan"
	"github.com/nearlb/nearlb/pkg/table"
)

// Exit statuses, as of nearlb.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// version is set by the linker (tests/release).
var version = "unknown"

// Main runs the plugin with its arguments, without the program's name, and returns its exit status.
func Main(args []string) int {
	if len(args) > 0 && args[0] == "plan" { // of files, here: its flags are its own, and an interrupt ends it
		return plan.Main(context.Background(), args[1:], os.Stdin, os.Stdout, os.Stderr)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard) // what client-go says of connections is in errors, too
	return run(ctx, args, connect, os.Stdout, os.Stderr)
}

func run(ctx context.Context, args []string, connect func(*request) (*cluster, error), out, errs io.Writer) int {
	if len(args) == 1 && args[0] == "--version" {
		fmt.Fprintf(out, "kubectl-nearlb %s\n", version)
		return exitDone
	}
	r, err := parse(args)
	if err == nil && r.wantsHelp() {
		fmt.Fprint(out, usage)
		return exitDone
	}
	var failed bool
	if err == nil {
		failed, err = r.run(ctx, connect, out, errs)
	}
	if err != nil {
		_ = writeFolded(errs, "kubectl nearlb: "+strings.ReplaceAll(err.Error(), "\n", "; ")) // there is nobody to tell
	}
	switch bad := (usageError{}); {
	case errors.As(err, &bad):
		return exitUsage
	case err != nil, failed:
		return exitFailed
	}
	return exitDone
}

// run says whether something failed that it told of.
func (r *request) run(ctx context.Context, connect func(*request) (*cluster, error), out, errs io.Writer) (failed bool, err error) {
	c, err := connect(r)
	if err != nil {
		return false, err
	}
	if r.command[0] == "why" {
		if err := r.aim(ctx, c); err != nil {
			return false, err
		}
	}
	agents, err := c.find(ctx, r)
	if err != nil {
		return false, err
	}
	if r.command[0] == "explain" { // the same everywhere
		agents = slices.DeleteFunc(agents, func(a agent) bool { return a.lack != nil })
		agents = agents[:min(1, len(agents))]
	}
	all := &asked{cluster: c, request: r, out: out, errs: errs}
	if r.command[0] == "ui" && r.output == "" {
		return false, all.page(ctx)
	}
	if r.command[0] == "collect" {
		return all.collect(ctx, agents, time.Now())
	}
	if r.command[0] == "status" && len(r.command) == 1 {
		return all.summary(ctx, agents)
	}
	return all.each(ctx, agents)
}

// asked is one command on several nodes.
type asked struct {
	*cluster
	*request
	out, errs io.Writer
	mu        sync.Mutex // of out and errs
}

// answer is what a node said.
type answer struct {
	node   string
	out    bytes.Buffer
	status int
	err    error  // it could not be asked, or not to the end
	said   string // on standard error
}

// atOnce is how many nodes are asked at a time. All that are followed are asked together.
const atOnce = 50

// ask has all agents run a command. What they say goes into to, as it comes, or is kept in the answer where to is nil.
func (a *asked) ask(ctx context.Context, agents []agent, command []string, to func(node string) io.Writer) []*answer {
	places := make(chan struct{}, max(1, atOnce))
	if a.follows() {
		places = make(chan struct{}, len(agents)+1)
	}
	answers := make([]*answer, len(agents))
	wait := a.waitFor(len(agents))
	defer wait.end()
	var all sync.WaitGroup
	for i, agent := range agents {
		answers[i] = &answer{node: agent.node, err: agent.lack}
		if agent.lack != nil {
			wait.one()
			continue
		}
		all.Add(1)
		go func() {
			defer all.Done()
			defer wait.one()
			places <- struct{}{}
			defer func() { <-places }()
			a.askOne(ctx, agent, command, to, answers[i])
		}()
	}
	all.Wait()
	return answers
}

// killed is what runtimes add to the number of the signal that ended a command. nearlb ends by itself with 2 at most.
const killed = 128

func (a *asked) askOne(ctx context.Context, agent agent, command []string, to func(node string) io.Writer, answer *answer) {
	if !a.follows() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.timeout)
		defer cancel()
	}
	var out io.Writer = &answer.out
	if to != nil {
		out = to(agent.node)
	}
	var errs bytes.Buffer
	outs, said := &door{to: out}, &door{to: &errs}
	answer.status, answer.err = a.cluster.run(ctx, agent.pod, a.container, append([]string{"nearlb"}, command...), outs, said)
	outs.shut()
	said.shut()
	switch {
	case answer.err == nil && answer.status > killed:
		answer.err = fmt.Errorf("the command was ended by signal %d: the agent's container may have ended meanwhile", answer.status-killed)
	case errors.Is(answer.err, context.DeadlineExceeded):
		answer.err = fmt.Errorf("no answer within %v (--timeout)", a.timeout)
	}
	if end, is := out.(interface{ end() }); is {
		end.end()
	}
	answer.said = strings.TrimSpace(errs.String())
}

// late tells of an error that the time for an answer was over, whatever the connection calls it: a handshake's deadline is the socket's, which
// may be a moment before the context's. A time that ran out long before, as a dial's, is an error of its own.
func late(ctx context.Context, err error) bool {
	const moment = 200 * time.Millisecond
	var timeout net.Error
	deadline, limited := ctx.Deadline()
	over := limited && time.Until(deadline) < moment
	return errors.Is(err, context.DeadlineExceeded) || over && errors.As(err, &timeout) && timeout.Timeout()
}

// door passes writes on until it is shut: a connection that was given up goes on writing what comes (remotecommand does not wait for it).
type door struct {
	mu     sync.Mutex
	to     io.Writer
	closed bool
}

// Write is io.Writer's.
func (d *door) Write(text []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, io.ErrClosedPipe
	}
	return d.to.Write(text)
}

func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}

// tell says what went wrong, once for all nodes where it is the same, and returns whether anything did.
func (a *asked) tell(answers []*answer) (failed bool, usage bool) {
	var order []string
	nodes := map[string][]string{}
	usage = len(answers) > 0
	for _, answer := range answers {
		text := answer.said
		switch {
		case answer.err != nil && errors.Is(answer.err, context.Canceled):
			usage = false
			continue // by who asked
		case answer.err != nil:
			text = strings.TrimSpace(text + "\n" + answer.err.Error())
			failed = true
		case answer.status != 0:
			failed = true
		}
		usage = usage && answer.status == exitUsage
		if text == "" {
			continue
		}
		if nodes[text] == nil {
			order = append(order, text)
		}
		nodes[text] = append(nodes[text], answer.node)
	}
	for _, text := range order {
		for line := range strings.Lines(text) {
			_ = writeFolded(a.errs, names(nodes[text])+": "+strings.TrimRight(line, "\r\n")) // there is nobody to tell
		}
	}
	return failed, usage
}

// names are at most three nodes, and how many more.
func names(nodes []string) string {
	if len(nodes) > 3 {
		return fmt.Sprintf("%s and %d more nodes", strings.Join(nodes[:3], ", "), len(nodes)-3)
	}
	return strings.Join(nodes, ", ")
}

// each runs the command everywhere and puts the answers together.
func (a *asked) each(ctx context.Context, agents []agent) (failed bool, err error) {
	command := func(format string) []string {
		if format == "" {
			return a.command
		}
		return append(slices.Clone(a.command), "-o", format)
	}
	rows := readCommands[a.command[0]]
	var answers []*answer
	switch {
	case a.output == "jsonl" && rows:
		answers = a.ask(ctx, agents, command("jsonl"), a.lines)
	case a.output == "json" || a.output == "yaml" || a.output == "jsonl":
		answers, err = a.documents(ctx, agents, command, rows)
	case (a.output == "" || a.output == "table" || a.output == "wide") && rows && a.command[0] != "zones" && !a.follows():
		answers = a.ask(ctx, agents, headed(command(a.output)), nil)
		err = writeTables(a.out, answers, a.has("--no-headers"))
	case a.follows():
		answers = a.ask(ctx, agents, command(a.output), a.prefixed(agents))
	case a.output == "name":
		answers = a.ask(ctx, agents, command(a.output), nil)
		err = a.once(answers)
	default:
		answers = a.ask(ctx, agents, command(a.output), nil)
		err = a.pages(answers)
	}
	failed, usage := a.tell(answers)
	if err == nil && usage {
		return failed, usageError{errors.New("nearlb refuses this request")}
	}
	return failed, err
}

// once prints each line that any node says once: a name is an object's, whoever says it.
func (a *asked) once(answers []*answer) error {
	said := map[string]bool{}
	for _, answer := range answers {
		for line := range strings.Lines(answer.out.String()) {
			if line = strings.TrimRight(line, "\r\n"); said[line] {
				continue
			}
			said[line] = true
			if _, err := fmt.Fprintln(a.out, line); err != nil {
				return err
			}
		}
	}
	return nil
}

// pages prints the answers one after the other, under their nodes' names where there are several.
func (a *asked) pages(answers []*answer) error {
	for i, answer := range answers {
		if answer.out.Len() == 0 {
			continue
		}
		if len(answers) > 1 && (a.output == "" || a.output == "table" || a.output == "wide") {
			if i > 0 {
				fmt.Fprintln(a.out)
			}
			fmt.Fprintf(a.out, "== node %s\n", printable(answer.node))
		}
		if a.output != "" && a.output != "table" || table.TerminalWidth(a.out) == 0 {
			if _, err := a.out.Write(answer.out.Bytes()); err != nil {
				return err
			}
			continue
		}
		for line := range strings.Lines(answer.out.String()) {
			if err := writeFolded(a.out, strings.TrimRight(line, "\r\n")); err != nil {
				return err
			}
		}
	}
	return nil
}

const usage = `kubectl nearlb asks the agents of all nodes at once.

Usage:
  kubectl nearlb COMMAND [FLAGS OF NEARLB] [FLAGS BELOW]

Commands, as of nearlb, with its flags (kubectl nearlb COMMAND ... -- --node X
passes on what is below as well):
  services, backends, flows, affinity, verdicts, devices, drops, changes, zones
  top --once, status, why, check, trace, version, explain, ui

  kubectl nearlb status                  the whole cluster in a screen
  kubectl nearlb services -n prod
  kubectl nearlb collect --mask          a bundle for who is to help: an archive
  kubectl nearlb drops -f --service prod/web -o jsonl
  kubectl nearlb why pod/cart-0 svc/web  asks the node that the pod is on
  kubectl nearlb ui                      a map of all nodes in a browser

plan reads files instead, and asks nobody. What follows it are flags of nearlb
plan alone: kubectl nearlb plan --help
  kubectl nearlb plan -f objects.yaml --node n1

Flags:
      --node NAMES             only these nodes, separated by commas
      --context NAME           of the kubeconfig
      --kubeconfig FILE
      --agent-namespace NAME   where the agents' pods are (kube-system)
  -l, --selector LABELS        of those pods (app.kubernetes.io/name=nearlb)
      --container NAME         in them (agent)
      --timeout TIME           for each node's answer (30s)
      --compare=false          status: do not compare the nodes' backends
      --file NAME              collect: of the archive
      --listen ADDRESS         ui: of the page (127.0.0.1:8249)
      --mask                   collect: other addresses in their place
  -o, --output FORMAT          as nearlb has it; jsonl is printed as it comes

      --version                of this plugin; version: of the agents

Each row of a table, and each object of JSON (onNode), has its node. Nodes that
cannot be asked are named on standard error; the exit status is 1 then, and
where a node's command ended so.
`
