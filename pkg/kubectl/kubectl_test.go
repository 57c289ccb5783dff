// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/cli"
)

// A file that is not there, or says nothing, is named, and not a variable that nobody sets.
func TestAKubeconfigWithoutAClusterIsNamed(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent/one:/nonexistent/two")
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // of a pod that runs this test
	if _, err := connect(&request{}); err == nil || err.Error() != "read kubeconfig: no cluster in /nonexistent/one, /nonexistent/two: name another with --kubeconfig or KUBECONFIG" {
		t.Error(err)
	}
}

// A plan is of files alone: the plugin asks no cluster for it.
func TestThePluginPlansWithoutACluster(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	objects := filepath.Join(t.TempDir(), "web.yaml")
	const web = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: prod}, spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}}"
	if err := os.WriteFile(objects, []byte(web), 0o600); err != nil {
		t.Fatal(err)
	}
	for status, args := range map[int][]string{exitDone: {"plan", "-f", objects, "--node", "n1"}, exitUsage: {"plan", "--diff", objects}} {
		if got := Main(args); got != status {
			t.Errorf("%v ends with %d, want %d", args, got, status)
		}
	}
}

// services is a program that prints a table of one Service, or it as JSON.
func services(node string, command []string, out, errs io.Writer) int {
	if slices.Contains(command, "jsonl") {
		fmt.Fprintf(out, `{"service":"prod/web","node":"backend-of-%s"}`+"\n"+`{"onNode":"%s"}`+"\n", node, node)
		return 0
	}
	fmt.Fprintf(out, "SERVICE         FRONTEND           FROM THIS NODE\nprod/web:http   10.96.0.10:80/TCP  all: 2 in cluster\n")
	if node == "n10" {
		fmt.Fprintf(out, "prod/other-web  10.96.0.11:80/TCP  -\n")
	}
	return 0
}

type result struct {
	status    int
	out, errs string
}

func plugin(t *testing.T, s *standIn, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	status := run(t.Context(), args, s.connect, &out, &errs)
	return result{status, out.String(), errs.String()}
}

func (r result) want(t *testing.T, status int, out, errs string) {
	t.Helper()
	if r.status != status || r.out != out || r.errs != errs {
		t.Errorf("status %d, want %d\n%swant\n%sstandard error\n%swant\n%s", r.status, status, r.out, out, r.errs, errs)
	}
}

func TestTablesOfAllNodesAreOne(t *testing.T) {
	for _, spdy := range []bool{false, true} {
		s := newStandIn(t, "n1", "n10")
		s.program, s.spdy = services, spdy
		plugin(t, s, "services", "-n", "prod").want(t, 0, `ON NODE  SERVICE         FRONTEND           FROM THIS NODE
n1       prod/web:http   10.96.0.10:80/TCP  all: 2 in cluster
n10      prod/web:http   10.96.0.10:80/TCP  all: 2 in cluster
n10      prod/other-web  10.96.0.11:80/TCP  -
`, "")
		slices.Sort(s.asked)
		if got := strings.Join(s.asked, "; "); got != "n10: nearlb services -n prod; n1: nearlb services -n prod" && got != "n1: nearlb services -n prod; n10: nearlb services -n prod" {
			t.Errorf("asked %s", got)
		}
	}
}

// Nobody is asked for help.
func TestHelpIsPrintedHoweverItIsAskedFor(t *testing.T) {
	s := newStandIn(t, "n1")
	for _, args := range [][]string{{}, {"help"}, {"--help"}, {"-h"}, {"help", "services"}, {"services", "--help"}, {"nosuch", "-h"}} {
		plugin(t, s, args...).want(t, 0, usage, "")
	}
	if len(s.asked) > 0 {
		t.Errorf("asked %v", s.asked)
	}
}

func TestEachObjectHasItsNode(t *testing.T) {
	s := newStandIn(t, "n1", "n2")
	s.program = services
	got := plugin(t, s, "services", "-o", "jsonl")
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	slices.Sort(lines)
	want := `{"onNode":"n1","service":"prod/web","node":"backend-of-n1"}
{"onNode":"n1"}
{"onNode":"n2","service":"prod/web","node":"backend-of-n2"}
{"onNode":"n2"}`
	if strings.Join(lines, "\n") != want || got.status != 0 {
		t.Errorf("%+v", got)
	}
	got = plugin(t, s, "services", "-ojson")
	var all []map[string]string
	if err := json.Unmarshal([]byte(got.out), &all); err != nil || len(all) != 4 || all[0]["onNode"] != "n1" || all[2]["onNode"] != "n2" {
		t.Errorf("%v, %+v", err, got)
	}
	if got = plugin(t, s, "services", "--output=yaml", "--node", "n2"); !strings.HasPrefix(got.out, "- node: backend-of-n2\n  onNode: n2\n") {
		t.Errorf("%+v", got)
	}
}

// check and explain answer with a list as their document.
func TestElementsOfAListHaveTheirNode(t *testing.T) {
	s := newStandIn(t, "n1", "n2")
	s.program = func(_ string, _ []string, out, _ io.Writer) int {
		fmt.Fprint(out, "[\n  {\n    \"subject\": \"kernel\"\n  },\n  {\"subject\": \"mounts\"}\n]\n")
		return 0
	}
	plugin(t, s, "check", "-o", "jsonl").want(t, 0, `{"onNode":"n1","subject":"kernel"}
{"onNode":"n1","subject":"mounts"}
{"onNode":"n2","subject":"kernel"}
{"onNode":"n2","subject":"mounts"}
`, "")
	plugin(t, s, "explain", "draining", "-o", "jsonl").want(t, 0, `{"onNode":"n1","subject":"kernel"}
{"onNode":"n1","subject":"mounts"}
`, "")
}

// G3: each command has the format in which the plugin asks for its rows, or its document.
func TestCommandsHaveTheFormatsThatAreAskedFor(t *testing.T) {
	root := cli.Root()
	for name, rows := range readCommands {
		want := "json"
		if rows {
			want = "jsonl"
		}
		cmd, _, err := root.Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		output := cmd.Flags().Lookup("output")
		if output == nil || output.Value.Set(want) != nil {
			t.Errorf("%s has no -o %s", name, want)
		}
	}
}

func TestReadmitIsTheWordBehindBackendsAlone(t *testing.T) {
	for args, want := range map[string]bool{
		"backends readmit 10.0.0.1:80": true, "backends -w readmit 10.0.0.1:80": true, "backends --pin-path=/p readmit 10.0.0.1:80": true,
		"services readmit": false, "backends --service readmit": false, "backends -n readmit": false,
	} {
		if r := (&request{command: strings.Fields(args)}); r.readmits() != want {
			t.Errorf("%s: readmits %v, want %v", args, !want, want)
		}
	}
}

func TestNodesThatCannotBeAskedAreNamed(t *testing.T) {
	s := newStandIn(t, "n1", "n2", "n3", "n4")
	s.nodes = append(s.nodes, "n5")
	s.pods[1] = podOn("n2", "nearlb-n2", "Running", false)
	s.program = func(node string, command []string, out, errs io.Writer) int {
		switch node {
		case "n3":
			return -1 // the connection breaks
		case "n4":
			fmt.Fprintln(errs, "nearlb: open tables: no agent has run here")
			return 1
		}
		return services(node, command, out, errs)
	}
	got := plugin(t, s, "services")
	if got.status != 1 || strings.Count(got.out, "\n") != 2 {
		t.Errorf("%+v", got)
	}
	for _, want := range []string{"n2: pod nearlb-n2 waits: CrashLoopBackOff\n", "n3: ", "n4: nearlb: open tables: no agent has run here\n", "n5: no pod of nearlb is there\n"} {
		if !strings.Contains(got.errs, want) {
			t.Errorf("no %q in\n%s", want, got.errs)
		}
	}
	s.runs(func(node string, command []string, out, errs io.Writer) int {
		if node == "n1" {
			return 137 // as its container ends
		}
		return services(node, command, out, errs)
	})
	const ended = "the command was ended by signal 9: the agent's container may have ended meanwhile"
	plugin(t, s, "services", "--node", "n1").want(t, 1, "", "n1: "+ended+"\n")
	if got := plugin(t, s, "status", "--node", "n1"); got.status != 1 || !strings.Contains(got.out, "\nn1: cannot be asked: "+ended+"\n") {
		t.Errorf("%+v", got)
	}
	s.runs(services)
	plugin(t, s, "services", "--node", "n1,n9").want(t, 2, "", "kubectl nearlb: --node n9: there is no such node\n")
	if got := plugin(t, s, "services", "--node=n1"); got.status != 0 || got.errs != "" {
		t.Errorf("%+v", got)
	}
	if got := plugin(t, s, "services", "-l", "app=other"); got.status != 1 || !strings.Contains(got.errs, "no pod of namespace kube-system has the labels app=other") {
		t.Errorf("%+v", got)
	}
}

// A name that is piped on to kubectl is one object, however many nodes have it.
func TestNamesOfObjectsAreSaidOnce(t *testing.T) {
	s := newStandIn(t, "n1", "n2")
	s.program = func(node string, _ []string, out, _ io.Writer) int {
		fmt.Fprintf(out, "prod/web\nprod/of-%s\n", node)
		return 0
	}
	plugin(t, s, "services", "-o", "name").want(t, 0, "prod/web\nprod/of-n1\nprod/of-n2\n", "")
}

func TestWhatAllNodesSayIsSaidOnce(t *testing.T) {
	s := newStandIn(t, "n1", "n2", "n3", "n4", "n5")
	s.program = func(_ string, _ []string, _, errs io.Writer) int {
		fmt.Fprintln(errs, "nearlb: unknown flag: --moon")
		return 2
	}
	plugin(t, s, "services", "--moon").want(t, 2, "", "n1, n2, n3 and 2 more nodes: nearlb: unknown flag: --moon\nkubectl nearlb: nearlb refuses this request\n")
}

func TestBadUsageIsRefusedBeforeAnybodyIsAsked(t *testing.T) {
	nobody := func(*request) (*cluster, error) { t.Error("connects"); return nil, io.EOF }
	for args, want := range map[string]string{
		"moon":                         `unknown command "moon"`,
		"agent":                        `unknown command "agent"`,
		"top":                          "top has a screen of one node",
		"backends readmit 10.0.0.1:80": "readmit changes a node: ",
		"backends --pin-path /p readmit 10.0.0.1:80": "readmit changes a node: ",
		"services --node":       "--node wants a value",
		"services --timeout 5":  `--timeout "5": want a time as 30s`,
		"services --compare=no": "--compare=no: want true or false",
		"services --node=":      "--node: want names of nodes",
		"services -l !!bad==":   `--selector "!!bad==": want labels`,
		"services --selector=":  `--selector "": want labels`,
		"why":                   "why wants a client and a Service",
		"why pod/cart-0":        "why wants a client and a Service",
		"why -n":                "-n wants a value",
	} {
		var out, errs bytes.Buffer
		if status := run(t.Context(), strings.Fields(args), nobody, &out, &errs); status != 2 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: %d, %s", args, status, &errs)
		}
	}
	var out, errs bytes.Buffer
	if status := run(t.Context(), nil, nobody, &out, &errs); status != 0 || !strings.HasPrefix(out.String(), "kubectl nearlb asks") {
		t.Errorf("%d, %s", status, &errs)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 81 {
			t.Errorf("wider than 80 columns: %s", line)
		}
	}
}

func TestWhyAsksTheNodeOfThePod(t *testing.T) {
	s := newStandIn(t, "n1", "n2")
	s.program = func(_ string, _ []string, out, _ io.Writer) int { fmt.Fprintln(out, "cause   nothing-wrong"); return 0 }
	for args, want := range map[string]string{
		"why pod/cart-0 svc/web":                  "n2: nearlb why 10.244.1.7 shop/web --from pod",
		"why cart-0 web:http -o json":             "n2: nearlb why 10.244.1.7 shop/web:http --from pod -o json",
		"why shop/cart-0 prod/web --from network": "n2: nearlb why 10.244.1.7 prod/web --from network",
		"why 10.244.1.7 web -n prod":              "n2: nearlb why 10.244.1.7 prod/web --from pod",
		"why 203.0.113.9 svc/web --node n1":       "n1: nearlb why 203.0.113.9 shop/web",
	} {
		s.asked = nil
		got := plugin(t, s, strings.Fields(args)...)
		if strings.Contains(args, "json") {
			got.status = 0 // the program says no JSON
		}
		if strings.Join(s.asked, "; ") != want || got.status != 0 {
			t.Errorf("%s: asked %v, %+v", args, s.asked, got)
		}
	}
	for args, want := range map[string]string{
		"why pod/cart-9 svc/web":           "find pod shop/cart-9: ",
		"why 203.0.113.9 svc/web":          "is no pod's address: --node NODE says where its packets come in",
		"why pod/cart-0":                   "why wants a client and a Service",
		"why pod/cart-0 svc/web --node n1": "the client is on node n2",
	} {
		if got := plugin(t, s, strings.Fields(args)...); got.status == 0 || !strings.Contains(got.errs, want) {
			t.Errorf("%s: %+v", args, got)
		}
	}
	plugin(t, s, "why", "shop/none", "svc/web").want(t, 1, "", "kubectl nearlb: find pod shop/none: /api/v1/namespaces/shop/pods/none is not there\n")
}

// statusOf is a program that serves, but on some nodes.
func statusOf(node string, command []string, out, _ io.Writer) int {
	if command[0] == "backends" {
		state := map[string]string{"n1": "active", "n2": `active","ejectedUntil":"2026-01-02T03:04:05Z`, "n3": "quiet"}[node]
		fmt.Fprintf(out, `{"service":"prod/web","port":"http","protocol":"TCP","address":"10.244.1.2","backendPort":8080,"state":"%s","tier":%q}`+"\n", state, node)
		fmt.Fprintf(out, `{"service":"prod/same","port":"","protocol":"TCP","address":"10.244.1.3","backendPort":80,"state":"active"}`+"\n")
		return 0
	}
	stale, trouble := node == "n2", ""
	if node != "n1" {
		trouble = `"sockets of the host are not served: no cgroup2"`
	}
	problem := `{"object":"Service prod/web","field":"spec.type","message":"a type that nobody knows"}`
	if node == "n3" {
		for n := range problemsNamed {
			problem += fmt.Sprintf(`,{"object":"Service prod/%d","field":"spec.type","message":"another"}`, n)
		}
	}
	fmt.Fprintf(out, `{"agent":{"version":"v1","state":"serving","running":true,"stale":%v,"services":7,"dirty":1,"failing":[],"problems":[`+problem+`],"trouble":[%s],`+
		`"written":"2026-01-02T03:04:05Z"},"tables":[{"table":"flows","used":10,"limit":100},{"table":"slots","used":10,"limit":20}],"draining":false}`, stale, trouble)
	if stale {
		return 1
	}
	return 0
}

func TestTheStatusOfAClusterIsOneScreen(t *testing.T) {
	s := newStandIn(t, "n1", "n2", "n3")
	s.nodes = append(s.nodes, "n4")
	s.program = statusOf
	plugin(t, s, "status").want(t, 1, `nodes     4, an agent serves on 2
versions  v1 on 3

NODE  AGENT      VERSION  SERVICES  WAITING  FAILING  PROBLEMS  FULLEST TABLE
n1    serving    v1              7        1        0         1  slots 50 %
n2    stale      v1              7        1        0         1  slots 50 %
n3    serving    v1              7        1        0         6  slots 50 %
n4    not asked  -               -        -        -         -  -

n1, n2, n3: problem: Service prod/web: spec.type: a type that nobody knows

n2: stale: the agent was last seen at 2026-01-02T03:04:05Z; what it published goes on serving

n2, n3: trouble: sockets of the host are not served: no cgroup2

n3: problem: Service prod/0: spec.type: another

n3: problem: Service prod/1: spec.type: another

n3: problem: Service prod/2: spec.type: another

n3: problem: Service prod/3: spec.type: another

n4: cannot be asked: no pod of nearlb is there

There are more problems: nearlb status in a node's pod (kubectl exec) lists all of that node

disagree: the backends of prod/web are not the same on n1, n2 | n3
`, "")
	got := plugin(t, s, "status", "-o", "json", "--node", "n1,n3", "--compare=false")
	var doc summaryDocument
	if err := json.Unmarshal([]byte(got.out), &doc); err != nil || got.status != 0 || len(doc.Nodes) != 2 || doc.Versions["v1"] != 2 || doc.Compared || doc.Nodes[1].Fullest != "slots" {
		t.Errorf("%v, %+v", err, got)
	}
}

func TestWhoFollowsGetsLinesAsTheyCome(t *testing.T) {
	s := newStandIn(t, "n1", "n2")
	ctx, stop := context.WithCancel(t.Context())
	both := make(chan struct{}, 2)
	s.program = func(_ string, _ []string, out, _ io.Writer) int {
		fmt.Fprint(out, `{"verdict":`)
		fmt.Fprintln(out, `"drop"}`)
		both <- struct{}{}
		<-ctx.Done()
		return -1
	}
	got := &watched{lines: make(chan string, 9)}
	ended := make(chan int, 1)
	var errs bytes.Buffer
	go func() { ended <- run(ctx, []string{"drops", "-f", "-o", "jsonl"}, s.connect, got, &errs) }()
	lines := []string{<-got.lines, <-got.lines}
	slices.Sort(lines)
	if lines[0] != `{"onNode":"n1","verdict":"drop"}`+"\n" || lines[1] != `{"onNode":"n2","verdict":"drop"}`+"\n" {
		t.Errorf("%q", lines)
	}
	stop()
	if status := <-ended; status != 0 {
		t.Errorf("status %d, %s", status, &errs)
	}
}

// What a node says after it was given up is nobody's.
// Tables that come again are as wide as a terminal, with their node's name before them.
func TestLinesThatAreFollowedFitATerminalBehindTheirNodesName(t *testing.T) {
	s := newStandIn(t, "n1", "n10")
	s.program = services
	plugin(t, s, "services", "--watch", "--node", "n1").want(t, 0, `n1  SERVICE         FRONTEND           FROM THIS NODE
n1  prod/web:http   10.96.0.10:80/TCP  all: 2 in cluster
`, "")
	if got := plugin(t, s, "services", "--watch"); !strings.Contains(got.out, "n1   prod/web:http ") || !strings.Contains(got.out, "n10  prod/web:http ") {
		t.Error(got.out)
	}
	if got, want := string(behindName("n1", 3, []byte("prod/web:http  10.96.0.10:80/TCP  all: 2 in cluster"), 40)), "n1   prod/web:http  10.96.0.10:80/TCP\n"; !strings.HasPrefix(got, want) || !strings.HasSuffix(got, " all: 2 in cluster") {
		t.Errorf("%q", got)
	}
}

func TestANodeThatDoesNotAnswerIsGivenUp(t *testing.T) {
	s := newStandIn(t, "n1", "n2")
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	s.program = func(node string, command []string, out, errs io.Writer) int {
		if node == "n2" {
			fmt.Fprintln(out, "SERVICE  FRONTEND")
			<-release
		}
		return services(node, command, out, errs)
	}
	limit := time.Second
	got := plugin(t, s, "services", "--timeout", limit.String())
	for strings.Contains(got.errs, "n1") && limit < time.Minute { // where the machine stands still, n1 has no time either
		limit *= 4
		got = plugin(t, s, "services", "--timeout", limit.String())
	}
	if got.status != 1 || !strings.Contains(got.out, "n1       prod/web:http") || !strings.Contains(got.errs, fmt.Sprintf("n2: no answer within %v (--timeout)", limit)) {
		t.Errorf("%+v", got)
	}
}

func TestASocketsDeadlineIsNoAnswerEither(t *testing.T) {
	over, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	begun, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for err, want := range map[error]bool{nil: false, io.ErrUnexpectedEOF: false, context.Canceled: false, context.DeadlineExceeded: true,
		&net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}: true, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}: false} {
		if late(over, err) != want {
			t.Errorf("%v: %v", err, !want)
		}
		if _, sockets := err.(*net.OpError); late(begun, err) != (want && !sockets) {
			t.Errorf("%v, while there is time: %v", err, late(begun, err))
		}
	}
}

type watched struct{ lines chan string }

func (w *watched) Write(text []byte) (int, error) { w.lines <- string(text); return len(text), nil }

// The container that is asked is the one that the DaemonSet has.
func TestTheAgentsContainerIsThatOfTheManifests(t *testing.T) {
	r, err := parse([]string{"status"})
	if err != nil {
		t.Fatal(err)
	}
	for _, manifest := range []string{"base/daemonset.yaml", "helm/nearlb/templates/daemonset.yaml"} {
		text, err := os.ReadFile("../../manifests/" + manifest)
		if err != nil {
			t.Fatal(err)
		}
		_, containers, _ := strings.Cut(string(text), "\n      containers:\n")
		if !strings.HasPrefix(strings.TrimSpace(containers), "- name: "+r.container+"\n") {
			t.Errorf("%s has no container %s", manifest, r.container)
		}
	}
}

// A node's table has the columns that its rows need: cells stand below their own heading, whichever node is the first.
func TestCellsOfANodeThatHasOtherColumnsGoByTheirHeading(t *testing.T) {
	s := newStandIn(t, "n1", "n2")
	s.program = func(node string, command []string, out, _ io.Writer) int {
		if slices.Contains(command, "--no-headers") {
			t.Error("a node is asked for a table without headings: nobody knows its columns then")
		}
		if node == "n1" {
			fmt.Fprint(out, "CLIENT  OPEN  IDLE\n10.0.0.1  3  2s\n")
		} else {
			fmt.Fprint(out, "CLIENT  OPEN  ENDED  IDLE\n10.0.0.2  4  5  1s\nsome more words\n")
		}
		return 0
	}
	rows := `n1       10.0.0.1     3      -    2s
n2       10.0.0.2     4      5    1s
n2: some more words
`
	plugin(t, s, "flows", "--group-by", "client").want(t, 0, "ON NODE  CLIENT    OPEN  ENDED  IDLE\n"+rows, "")
	plugin(t, s, "flows", "--group-by", "client", "--no-headers").want(t, 0, "n1  10.0.0.1  3  -  2s\nn2  10.0.0.2  4  5  1s\nn2: some more words\n", "")
}
