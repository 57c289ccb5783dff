// SPDX-License-Identifier: Apache-2.0

package structure

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logKeys are all keys that a line of the agent's log may have, besides slog's own (time, level, msg) and those of client-go. Whoever
// searches logs wants one name for one thing: look here before you add one.
var logKeys = []string{
	"service", "frontend", "backend", "device", "cgroup", "map", "entry", "verdict", "program", "method", "kind", "node", "addresses",
	"error", "problem", "change", "repaired", "retry", "services", "endpoints", "nodes", "sockets", "missing", "until",
	"version", "source", "object", "server", "left", "address", "directory", "file", "subject", "capabilities",
	"layout", "flows", "affinity", "entries", "bytes", "zone",
}

// Messages are constant, so that they can be searched for and counted; what changes is under fixed keys.
func TestLogLinesHaveConstantMessagesAndKnownKeys(t *testing.T) {
	calls := 0
	product := func(path string) bool {
		// clientlog hands on what client-go says; its keys are its own.
		return strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(path, "watch/clientlog.go")
	}
	for path, text := range filesOf(t, "pkg", product) {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, is := n.(*ast.CallExpr); is && isLog(call) {
				calls++
				if problem := badLog(call); problem != "" {
					t.Errorf("%v: %s", files.Position(call.Pos()), problem)
				}
			}
			return true
		})
	}
	if calls < 30 {
		t.Errorf("%d calls found: the test does not see them any more", calls)
	}
}

// isLog tells of a call of a method of something named log.
func isLog(call *ast.CallExpr) bool {
	method, is := call.Fun.(*ast.SelectorExpr)
	if !is || !slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, method.Sel.Name) {
		return false
	}
	switch on := method.X.(type) {
	case *ast.Ident:
		return strings.EqualFold(on.Name, "log")
	case *ast.SelectorExpr:
		return strings.EqualFold(on.Sel.Name, "log")
	}
	return false
}

func badLog(call *ast.CallExpr) string {
	if literal(call.Args[0]) == "" {
		return "the message of a log line is no constant"
	}
	if len(call.Args)%2 == 0 {
		return "a key has no value"
	}
	for i := 1; i < len(call.Args); i += 2 {
		if key := literal(call.Args[i]); !slices.Contains(logKeys, key) {
			return "key " + strconv.Quote(key) + " is not one of logKeys"
		}
	}
	return ""
}

func literal(e ast.Expr) string {
	basic, is := e.(*ast.BasicLit)
	if !is || basic.Kind != token.STRING {
		return ""
	}
	text, _ := strconv.Unquote(basic.Value)
	return text
}
