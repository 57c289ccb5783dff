// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

type nodesDocument struct {
	Nodes []struct{ Node, Error, Asked string }
	Error string
}

// servePage runs kubectl nearlb ui, and gives the address of its page.
func servePage(t *testing.T, s *standIn, args ...string) string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	out, done := &watched{lines: make(chan string, 10)}, make(chan int, 1)
	go func() {
		done <- run(ctx, append([]string{"ui", "--listen=127.0.0.1:0"}, args...), s.connect, out, io.Discard)
	}()
	t.Cleanup(func() {
		stop()
		if status := <-done; status != exitDone {
			t.Errorf("it ends with %d", status)
		}
	})
	return strings.TrimSpace(<-out.lines)
}

func getDocument(t *testing.T, url string) (int, nodesDocument) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var doc nodesDocument
	if err := json.NewDecoder(answer.Body).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, doc
}

// uiOf is nearlb ui on a node, which says what it was asked for. n3's is too old to know the command.
func uiOf(node string, command []string, out, errs io.Writer) int {
	if node == "n3" {
		fmt.Fprintln(errs, `nearlb: unknown command "ui" of nearlb`)
		return exitUsage
	}
	text, _ := json.Marshal(map[string]string{"node": node, "asked": strings.Join(command, " ")})
	_, _ = out.Write(text)
	return exitDone
}

func TestThePageHasWhatAllNodesSay(t *testing.T) {
	s := newStandIn(t, "n1", "n2", "n3")
	s.program = uiOf
	page := servePage(t, s)
	for path, flag := range map[string]string{"map.json?filter=shop/%20--x": "--filter=shop/ --x", "why.json?service=shop/web": "--service=shop/web"} {
		status, doc := getDocument(t, page+path)
		if status != http.StatusOK || len(doc.Nodes) != 3 {
			t.Fatalf("%s: %d %+v", path, status, doc)
		}
		for i, n := range doc.Nodes {
			want := "ui -o json " + flag
			if i == 2 {
				want = ""
			}
			if n.Node != fmt.Sprintf("n%d", i+1) || n.Asked != want || (n.Error != "") != (i == 2) {
				t.Errorf("%s: %+v", path, n)
			}
		}
	}
	s.mu.Lock()
	before := len(s.asked)
	s.mu.Unlock()
	if _, again := getDocument(t, page+"map.json?filter=shop/%20--x"); len(again.Nodes) != 3 {
		t.Errorf("%+v", again)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if after := len(s.asked); after != before && after != before+3 || !slices.ContainsFunc(s.asked, func(a string) bool { return strings.Contains(a, "--filter=shop/ --x") }) {
		t.Errorf("asked %d times, then %d", before, after)
	}
}

func TestThePageSaysThatNoNodeCanBeAsked(t *testing.T) {
	s := newStandIn(t, "n3")
	s.program = uiOf
	if status, doc := getDocument(t, servePage(t, s)+"map.json"); status != http.StatusServiceUnavailable || !strings.Contains(doc.Error, `none of 1 nodes can be asked: nearlb: unknown command "ui"`) {
		t.Errorf("%d %+v", status, doc)
	}
}

func TestThePageOfNodesIsForThisHostAlone(t *testing.T) {
	for _, args := range []string{"ui --listen=0.0.0.0:80", "ui --listen=:8249", "ui --filter=web", "status --listen=127.0.0.1:0"} {
		s := newStandIn(t, "n1")
		s.program = uiOf
		if got := plugin(t, s, strings.Fields(args)...); got.status != exitUsage {
			t.Errorf("%s: %+v", args, got)
		}
	}
}
