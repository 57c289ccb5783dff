// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/explain"
	"github.com/nearlb/nearlb/pkg/maps"
)

// said are the words that the code says, by kind, from where it says them.
func said(t *testing.T) map[explain.Kind][]string {
	t.Helper()
	all := map[explain.Kind][]string{
		explain.Flow: maps.FlowStates(), explain.Seen: named(bpf.SeenNames(^uint32(0))), explain.Flag: named(bpf.FlowFlagNames(^uint8(0))),
	}
	for _, v := range bpf.Verdicts() {
		if v.Class != bpf.Continue {
			all[explain.Verdict] = append(all[explain.Verdict], v.Spelled())
		}
	}
	for state := range uint8(255) {
		all[explain.State] = append(all[explain.State], named([]string{bpf.StateName(state)})...)
	}
	for path, take := range map[string]func(source){
		"../lb/*.go": func(s source) {
			all[explain.Reason] = append(all[explain.Reason], s.constants("Reason", "")...)
			all[explain.Note] = append(all[explain.Note], s.constants("Note", "")...)
			all[explain.Action] = append(all[explain.Action], s.constants("Action", "")...)
			all[explain.Tier] = append(all[explain.Tier], s.constants("TierName", "")...)
			all[explain.State] = append(all[explain.State], s.constants("State", "")...)
		},
		"../maps/*.go": func(s source) {
			all[explain.State] = append(all[explain.State], s.constants("", "stale")...)
			all[explain.Change] = append(all[explain.Change], s.fields("What")...)
		},
		"../maps/noted.go": func(s source) { all[explain.Change] = append(all[explain.Change], s.constants("", "")...) },
		"../agent/*.go": func(s source) {
			all[explain.Agent] = append(all[explain.Agent], s.constants("State", "")...)
			all[explain.Failure] = append(all[explain.Failure], s.constants("", "tableFull")...)
			all[explain.Failure] = append(all[explain.Failure], s.returned("cause")...)
			all[explain.Change] = append(all[explain.Change], s.fields("What")...)
			all[explain.Change] = append(all[explain.Change], s.second("tell")...)
		},
		"explain.go":       func(s source) { all[explain.State] = append(all[explain.State], s.constants("", "Ejected")...) },
		"../cli/why*.go":   func(s source) { all[explain.Cause] = append(all[explain.Cause], s.causes()...) },
		"../cli/zones*.go": func(s source) { all[explain.Crossed] = append(all[explain.Crossed], s.constants("", "crossed")...) },
	} {
		take(parsed(t, path))
	}
	all[explain.Crossed] = append(all[explain.Crossed], "unknown-zone")
	return all
}

// named leaves out numbers, which stand for values without a name.
func named(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { _, err := strconv.Atoi(name); return err == nil })
}

// Every word that the code says has a text, and every text is of a word that the code says.
func TestEachWordOfTheOutputIsExplained(t *testing.T) {
	want := map[string]bool{}
	for kind, words := range said(t) {
		if len(words) == 0 {
			t.Errorf("found no %s", kind)
		}
		for _, word := range words {
			want[fmt.Sprintf("%s (%s)", word, kind)] = true
		}
	}
	have := map[string]bool{}
	for _, w := range explain.Words() {
		name := fmt.Sprintf("%s (%s)", w.Word, w.Kind)
		if have[name] {
			t.Errorf("%s is explained twice", name)
		}
		if have[name] = true; !want[name] {
			t.Errorf("%s: nothing says it", name)
		}
		if w.Text == "" || strings.HasSuffix(w.Text, ".") || strings.Contains(w.Anywhere().Text+w.Anywhere().Do, "{") {
			t.Errorf("%s: text %q, %q", name, w.Text, w.Do)
		}
	}
	for name := range want {
		if !have[name] {
			t.Errorf("%s has no text: write one into pkg/explain", name)
		}
	}
}

func TestAWordIsFoundHoweverItIsSpelled(t *testing.T) {
	for asked, want := range map[string]string{
		"no-endpoints": "no-endpoints no-endpoints reject-no-endpoints", "NO_ENDPOINTS": "no-endpoints no-endpoints reject-no-endpoints",
		"drop_no_route": "drop-no-route", "no-route": "drop-no-route", "table-full": "table_full", "draining": "draining pass-draining", "moon": "",
	} {
		var got []string
		for _, w := range explain.Find(asked) {
			got = append(got, w.Word)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", asked, got, want)
		}
	}
	if got := explain.Text(explain.Reason, "same-zone", "n1", "a", ""); got != "in zone a or hinted for it" {
		t.Errorf("got %s", got)
	}
}

// docs/words.md is what nearlb explain says. NEARLB_UPDATE=1 writes it.
func TestThePageOfWordsIsTheVocabulary(t *testing.T) {
	const path = "../../docs/words.md"
	var page strings.Builder
	page.WriteString("# Words of nearlb's output\n\nWhat `nearlb explain WORD` says. This page is made from `pkg/explain`: a test compares them.\n")
	var last explain.Kind
	for _, w := range explain.Words() {
		if w = w.Anywhere(); w.Kind != last {
			last = w.Kind
			fmt.Fprintf(&page, "\n## %s\n\n| word | it is | what to do |\n|---|---|---|\n", strings.ToUpper(string(last[:1]))+string(last[1:]))
		}
		fmt.Fprintf(&page, "| `%s` | %s | %s |\n", w.Word, w.Text, w.Do)
	}
	if os.Getenv("NEARLB_UPDATE") != "" {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != page.String() {
		t.Errorf("%s is another: NEARLB_UPDATE=1 go test ./pkg/explain writes it", path)
	}
}

// Words in the first column of the tables of docs/events.md and docs/traffic.md exist.
func TestWordsInTablesOfTheDocumentationExist(t *testing.T) {
	for _, path := range []string{"../../docs/events.md", "../../docs/traffic.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		inTable, checked := false, 0
		for line := range strings.Lines(string(text)) {
			first, _, isRow := strings.Cut(strings.TrimPrefix(line, "| "), " |")
			switch {
			case !strings.HasPrefix(line, "|"):
				inTable = false
			case slices.Contains([]string{"`what`", "`reason`", "`STATE`"}, first):
				inTable = true
			case inTable && isRow:
				for i, part := range strings.Split(first, "`") {
					if i%2 == 1 && !strings.Contains(part, " ") {
						if checked++; len(explain.Find(part)) == 0 {
							t.Errorf("%s: there is no word %s", path, part)
						}
					}
				}
			}
		}
		if checked == 0 {
			t.Errorf("%s has no such table", path)
		}
	}
}

// source is some files of the tree, without their tests.
type source struct {
	t     *testing.T
	files []*ast.File
}

func parsed(t *testing.T, pattern string) source {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(paths), err)
	}
	s := source{t: t}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "_bpfel.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		s.files = append(s.files, file)
	}
	return s
}

func (s source) walk(visit func(ast.Node)) {
	for _, file := range s.files {
		ast.Inspect(file, func(n ast.Node) bool { visit(n); return true })
	}
}

// constants are the texts of constants of a type, and of a name that begins so.
func (s source) constants(kind, prefix string) (all []string) {
	s.walk(func(n ast.Node) {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return
		}
		of, _ := spec.Type.(*ast.Ident)
		if of == nil {
			of = &ast.Ident{}
		}
		for i, name := range spec.Names {
			if of.Name == kind && strings.HasPrefix(name.Name, prefix) && i < len(spec.Values) {
				all = append(all, texts(spec.Values[i])...)
			}
		}
	})
	return all
}

// fields are the texts that composite literals give a field.
func (s source) fields(name string) (all []string) {
	s.walk(func(n ast.Node) {
		pair, ok := n.(*ast.KeyValueExpr)
		if key, is := cmp.Or(pair, &ast.KeyValueExpr{}).Key.(*ast.Ident); ok && is && key.Name == name {
			all = append(all, texts(pair.Value)...)
		}
		assign, ok := n.(*ast.AssignStmt)
		if !ok {
			return
		}
		for i, to := range assign.Lhs {
			if field, is := to.(*ast.SelectorExpr); is && field.Sel.Name == name && i < len(assign.Rhs) {
				all = append(all, texts(assign.Rhs[i])...)
			}
		}
	})
	return all
}

// returned are the texts that a function returns.
func (s source) returned(function string) (all []string) {
	s.walk(func(n ast.Node) {
		if f, ok := n.(*ast.FuncDecl); ok && f.Name.Name == function && f.Recv == nil {
			ast.Inspect(f, func(n ast.Node) bool {
				if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) == 1 {
					all = append(all, texts(r.Results[0])...)
				}
				return true
			})
		}
	})
	return all
}

// second are the texts that calls of a method have as their second argument.
func (s source) second(method string) (all []string) {
	s.walk(func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) < 2 {
			return
		}
		if of, is := call.Fun.(*ast.SelectorExpr); is && of.Sel.Name == method {
			all = append(all, texts(call.Args[1])...)
		}
	})
	return all
}

// causes are the first texts of literals cause{"...", ...}, and of lists of them.
func (s source) causes() (all []string) {
	s.walk(func(n ast.Node) {
		literal, ok := n.(*ast.CompositeLit)
		if !ok || len(literal.Elts) == 0 {
			return
		}
		if of, is := literal.Type.(*ast.Ident); is && of.Name == "cause" || literal.Type == nil && len(literal.Elts) == 3 {
			all = append(all, texts(literal.Elts[0])...)
		}
	})
	all = append(all, s.assigned("what")...)
	return all
}

// assigned are the texts that a variable gets.
func (s source) assigned(name string) (all []string) {
	s.walk(func(n ast.Node) {
		assign, ok := n.(*ast.AssignStmt)
		if !ok {
			return
		}
		for i, to := range assign.Lhs {
			if v, is := to.(*ast.Ident); is && v.Name == name && i < len(assign.Rhs) {
				all = append(all, texts(assign.Rhs[i])...)
			}
		}
	})
	return all
}

// texts is the text of a literal; nothing of other expressions.
func texts(of ast.Expr) []string {
	literal, ok := of.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return nil
	}
	text, err := strconv.Unquote(literal.Value)
	if err != nil || text == "" {
		return nil
	}
	return []string{text}
}
