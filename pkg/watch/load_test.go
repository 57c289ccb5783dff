// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// try loads one text and gives what came of it.
func try(text string) (Source, []string, error) {
	var warnings []string
	source, err := Load([]string{"-"}, strings.NewReader(text), NodeConfig{}, func(w string) { warnings = append(warnings, w) })
	return source, warnings, err
}

func names(source Source) string {
	var out []string
	for _, name := range source.Services() {
		out = append(out, name.String())
	}
	return strings.Join(out, " ")
}

func jsonService(name string) string {
	return `{"apiVersion":"v1","kind":"Service","metadata":{"name":"` + name + `"},"spec":{"clusterIP":"10.96.0.10","ports":[{"port":80}]}}`
}

func TestObjectsComeInEveryFormThatKubectlTakes(t *testing.T) {
	item := strings.Replace(jsonService("a"), `"apiVersion":"v1","kind":"Service",`, "", 1)
	rows := []struct{ name, text, want string }{
		{"JSON", jsonService("a"), "default/a"},
		{"JSON documents", jsonService("a") + "\n" + jsonService("b") + jsonService("c"), "default/a default/b default/c"},
		{"JSON between YAML", "---\n" + jsonService("a") + "\n---\n# nothing\n---\n" + webService, "default/a default/web"},
		{"YAML with comments and directives", "# a comment\n--- # another\n" + webService + "\n---\n", "default/web"},
		{"a List", `{"apiVersion":"v1","kind":"List","items":[` + jsonService("a") + `,` + jsonService("b") + `]}`, "default/a default/b"},
		{"a List in a List", `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"List","items":[` + jsonService("a") + `]}]}`, "default/a"},
		{"a ServiceList", `{"apiVersion":"v1","kind":"ServiceList","items":[` + item + `]}`, "default/a"},
		{"an empty List", "{apiVersion: v1, kind: List}", ""},
		{"a byte order mark", "\ufeff" + jsonService("a"), "default/a"},
		{"carriage returns", "---\r\n" + webService + "\r\n---\r\n" + jsonService("a") + "\r\n", "default/a default/web"},
		{"nothing", "", ""},
		{"null", "null\n---\n\n", ""},
	}
	for _, row := range rows {
		source, warnings, err := try(row.text)
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: error %v, warnings %q", row.name, err, warnings)
			continue
		}
		same(t, row.name, names(source), row.want)
	}
}

func TestWhatIsOnlyOddIsAWarning(t *testing.T) {
	rows := []struct{ name, text, want string }{
		{"another kind", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}}",
			"standard input: Deployment shop/web, kind Deployment of apps/v1 is skipped: it is not read here"},
		{"Endpoints (A5)", "{apiVersion: v1, kind: Endpoints, metadata: {name: web}}",
			"standard input: Endpoints web, kind Endpoints of v1 is skipped: it is not read here"},
		{"an unknown field", strings.Replace(jsonService("a"), `"spec":{`, `"spec":{"prots":[],`, 1), `standard input: Service a: unknown field "spec.prots"`},
		{"a field twice", strings.Replace(jsonService("a"), `"spec":{`, `"spec":{"clusterIP":"10.96.0.11",`, 1), `standard input: Service a: duplicate field "spec.clusterIP"`},
		{"a key twice", "{apiVersion: v1, kind: List, items: [], items: []}", `standard input: document 1: yaml: unmarshal errors:   line 1: key "items" already set in map`},
	}
	for _, row := range rows {
		_, warnings, err := try(row.text)
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
		}
		same(t, row.name, strings.Join(warnings, "|"), row.want)
	}
}

func TestTextThatCannotBeReadIsRefusedWithItsPlace(t *testing.T) {
	deep := "{apiVersion: v1, kind: List, items: []}"
	for range 20 {
		deep = "{apiVersion: v1, kind: List, items: [" + deep + "]}"
	}
	rows := []struct {
		text string
		want ObjectError
	}{
		{"a: [", ObjectError{Object: "document 1", Problem: "line 1"}},
		{webService + "\n---\n\tx", ObjectError{Object: "document 2", Problem: "cannot start any token"}},
		{"- a", ObjectError{Object: "document 1", Problem: "must be an object"}},
		{"just text", ObjectError{Object: "document 1"}},
		{"{kind: Service}", ObjectError{Object: "document 1", Field: "apiVersion", Problem: "required value"}},
		{"{apiVersion: v1}", ObjectError{Object: "document 1", Field: "kind", Problem: "required value"}},
		{"{apiVersion: v1, kind: List, items: 7}", ObjectError{Object: "document 1", Field: "items", Problem: "must be a list"}},
		{"{apiVersion: v1, kind: List, items: [{}]}", ObjectError{Object: "document 1, items[0]", Field: "kind", Problem: "required value"}},
		{deep, ObjectError{Field: "items", Problem: "too many Lists"}},
		{"--- x", ObjectError{Object: "document 1", Problem: "separator"}},
		{webService + "\n---\n" + webService, ObjectError{Object: "Service default/web", Problem: "twice"}},
		{"{apiVersion: v1, kind: Service, metadata: {name: web}, spec: [1]}", ObjectError{Object: "Service web", Field: "spec", Problem: "must be an object"}},
	}
	for _, row := range rows {
		_, _, err := try(row.text)
		var got *ObjectError
		if !errors.As(err, &got) {
			t.Errorf("%.60q: error is %v", row.text, err)
			continue
		}
		if got.File != "standard input" || !strings.Contains(got.Object, row.want.Object) || got.Field != row.want.Field || !strings.Contains(got.Problem, row.want.Problem) {
			t.Errorf("%.60q: refused with %+v, want %+v", row.text, *got, row.want)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60q: the error has several lines: %q", row.text, err)
		}
	}
}

func TestFilesAndDirectoriesAreRead(t *testing.T) {
	dir := t.TempDir()
	for name, service := range map[string]string{"b.yaml": "b", "a.json": "a", "c.yml": "c", ".hidden.yaml": "hidden", "d.txt": "text", "sub/e.yaml": "below", "sub.yaml/f.yaml": "odd"} {
		write(t, filepath.Join(dir, name), jsonService(service))
	}
	other := filepath.Join(t.TempDir(), "manifest")
	write(t, other, jsonService("named"))
	source, err := Load([]string{dir, other, "-"}, strings.NewReader(jsonService("piped")), NodeConfig{}, func(w string) { t.Error(w) })
	if err != nil {
		t.Fatal(err)
	}
	same(t, "services", names(source), "default/a default/b default/c default/named default/piped")
}

func TestBadArgumentsAreErrorsOfOneLine(t *testing.T) {
	dir := t.TempDir()
	bad, good, again := filepath.Join(dir, "bad.yaml"), filepath.Join(dir, "good.yaml"), filepath.Join(dir, "again.yaml")
	write(t, bad, withSpec("clusterIP: 10.96.0.10, ports: [{port: 70000}]"))
	write(t, good, webService)
	write(t, again, webService)
	rows := []struct {
		files []string
		cfg   NodeConfig
		want  string
	}{
		{[]string{filepath.Join(dir, "missing.yaml")}, NodeConfig{}, "read " + dir + "/missing.yaml: no such file or directory"},
		{[]string{bad}, NodeConfig{}, bad + ": Service default/web: spec.ports[0].port: 70000: must be between 1 and 65535, inclusive"},
		{[]string{good, again}, NodeConfig{}, again + ": Service default/web: is defined in " + good + " already"},
		{[]string{"-", "-"}, NodeConfig{}, "read standard input: it can be given once"},
		{nil, NodeConfig{NodePortAddresses: []string{"x"}}, `read nodeport addresses: "x": must be a CIDR, or "primary" alone`},
	}
	for _, row := range rows {
		if _, err := Load(row.files, strings.NewReader(""), row.cfg, nil); err == nil || err.Error() != row.want {
			t.Errorf("%v: error is %v, want %s", row.files, err, row.want)
		}
	}
}

func TestAnEmptyDirectoryIsWarnedOf(t *testing.T) {
	dir := t.TempDir()
	var warnings []string
	if _, err := Load([]string{dir}, nil, NodeConfig{}, func(w string) { warnings = append(warnings, w) }); err != nil {
		t.Fatal(err)
	}
	same(t, "warnings", warnings, []string{dir + ": no file *.yaml, *.yml or *.json in this directory"})
}

func TestALoadedSliceWithoutItsServiceIsAProblem(t *testing.T) {
	same(t, "problems", loadFixture(t, "example-abc.yaml").Problems(), []lb.Problem{{Object: "EndpointSlice default/example-abc",
		Field: "metadata.labels[kubernetes.io/service-name]", Message: "no Service default/example is served: these endpoints are of no use"}})
}

// counter counts events, and says that something came.
type counter struct {
	services []lb.ServiceName
	nodes    int
	syncs    int
}

func (c *counter) ServiceChanged(name lb.ServiceName) { c.services = append(c.services, name) }
func (c *counter) NodeChanged()                       { c.nodes++ }
func (c *counter) Synced()                            { c.syncs++ }

func TestLoadedFilesAreSyncedAtOnce(t *testing.T) {
	var events counter
	if err := load(t, NodeConfig{}, webService).Run(context.Background(), &events); err != nil {
		t.Fatal(err)
	}
	same(t, "syncs", events.syncs, 1)
}
