// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

// follow runs a source over a directory with these files and waits for its first list.
func follow(t *testing.T, files map[string]string) (dir string, source *directory, r *recorder) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "manifests")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		write(t, filepath.Join(dir, name), text)
	}
	r = newRecorder()
	source = Manifests(dir, NodeConfig{Name: "n1"}, slog.New(r)).(*directory)
	r.run(t, source)
	r.until(t, "the first list", func() bool { return r.synced() == 1 })
	return dir, source, r
}

func endpointsOf(source Source, name string) int {
	in, ok := source.Input(lb.ServiceName{Namespace: "default", Name: name})
	if !ok {
		return -1
	}
	return len(in.Endpoints)
}

// sliceOf is a slice of the Service web with n endpoints.
func sliceOf(name string, n int) string {
	var addresses []string
	for i := range n {
		addresses = append(addresses, fmt.Sprintf("{addresses: [10.1.%d.%d]}", i/200, i%200+1))
	}
	return webSlice(name, "addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: ["+strings.Join(addresses, ", ")+"]")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestADirectoryIsFollowedAsItChanges(t *testing.T) {
	dir, source, r := follow(t, map[string]string{"web.yaml": webService, "other.yaml": jsonService("other")})
	same(t, "services", names(source), "default/other default/web")
	if n := r.changed("web"); n != 0 {
		t.Errorf("told %d times of web before the first list", n)
	}

	write(t, filepath.Join(dir, "slice.yaml"), sliceOf("web-a", 1))
	r.until(t, "a new file", func() bool { return endpointsOf(source, "web") == 1 && r.changed("web") > 0 })

	write(t, filepath.Join(dir, "slice.yaml"), sliceOf("web-a", 3))
	r.until(t, "a rewritten file", func() bool { return endpointsOf(source, "web") == 3 })

	write(t, filepath.Join(dir, ".slice.yaml.swp"), sliceOf("web-a", 2))
	must(t, os.Rename(filepath.Join(dir, ".slice.yaml.swp"), filepath.Join(dir, "slice.yaml")))
	r.until(t, "an editor's rename", func() bool { return endpointsOf(source, "web") == 2 })

	must(t, os.Remove(filepath.Join(dir, "slice.yaml")))
	r.until(t, "a removed file", func() bool { return endpointsOf(source, "web") == 0 })

	must(t, os.Rename(filepath.Join(dir, "web.yaml"), filepath.Join(dir, "web.yaml.off")))
	r.until(t, "a file with another ending", func() bool { return endpointsOf(source, "web") == -1 })

	if n := r.changed("other"); n != 0 {
		t.Errorf("told %d times of a Service that nobody touched (A16)", n)
	}
	write(t, filepath.Join(dir, "node.yaml"), nodeObject("n1", "topology.kubernetes.io/zone: a"))
	r.until(t, "the own node, whose zone concerns all", func() bool { return r.nodeChanges() == 1 && r.changed("other") == 1 })
	same(t, "zone", source.Node().Zone, "a")
}

// An object that moves to another file is not gone in between, and not defined twice.
func TestAnObjectMayMoveToAnotherFile(t *testing.T) {
	dir, source, r := follow(t, map[string]string{"a.yaml": webService, "b.yaml": jsonService("b")})
	write(t, filepath.Join(dir, "b.yaml"), jsonService("b")+"\n---\n"+strings.Replace(webService, "port: 80", "port: 81", 1))
	r.until(t, "the refusal", func() bool { return r.logged("is defined in "+filepath.Join(dir, "a.yaml")+" already") == 1 })
	same(t, "services", names(source), "default/b default/web")
	same(t, "problems", source.Problems(), []lb.Problem{{Object: "Service default/web",
		Message: filepath.Join(dir, "b.yaml") + ": is defined in " + filepath.Join(dir, "a.yaml") + " already"}})
	must(t, os.Remove(filepath.Join(dir, "a.yaml")))
	r.until(t, "the second definition", func() bool {
		return r.changed("web") == 1 && input(t, source, "default", "web").Service.Ports[0].Port == 81
	})
	r.until(t, "the acceptance", func() bool { return r.logged("manifest is accepted again") > 0 })
	same(t, "problems", source.Problems(), []lb.Problem(nil))
}

func TestABadFileIsRefusedAndWhatItSaidBeforeStays(t *testing.T) {
	dir, source, r := follow(t, map[string]string{"web.yaml": webService, "slice.yaml": sliceOf("web-a", 2)})
	path := filepath.Join(dir, "slice.yaml")
	for text, refusal := range map[string]string{
		"a: [": "document 1: yaml",
		strings.Replace(sliceOf("web-a", 3), "8080", "80800", 1):                         "EndpointSlice default/web-a: ports[0].port: 80800",
		sliceOf("web-a", 3) + "\n---\n" + withSpec("clusterIP: '1', ports: [{port: 1}]"): "Service default/web: spec.clusterIP",
		" \n": "the file is empty",
	} {
		write(t, path, text)
		r.until(t, "the refusal", func() bool { return r.logged(path+": "+refusal) > 0 })
		if n := endpointsOf(source, "web"); n != 2 {
			t.Errorf("after %.30q web has %d endpoints", text, n)
		}
		if len(source.Problems()) != 1 {
			t.Errorf("after %.30q the problems are %v", text, source.Problems())
		}
	}
	if n := r.changed("web"); n != 0 {
		t.Errorf("told %d times of a Service that did not change", n)
	}
	write(t, path, sliceOf("web-a", 1))
	r.until(t, "a good file again", func() bool { return endpointsOf(source, "web") == 1 && r.logged("manifest is accepted again") > 0 })
}

// The way Kubernetes' own volumes change: all files at once, by a symbolic link.
func TestAVolumesSymbolicLinkIsFollowed(t *testing.T) {
	dir, source, r := follow(t, nil)
	write(t, filepath.Join(dir, "..1", "web.yaml"), webService)
	write(t, filepath.Join(dir, "..2", "web.yaml"), strings.Replace(webService, "port: 80", "port: 81", 1))
	must(t, os.Symlink("..1", filepath.Join(dir, "..data")))
	must(t, os.Symlink(filepath.Join("..data", "web.yaml"), filepath.Join(dir, "web.yaml")))
	r.until(t, "the first version", func() bool { return endpointsOf(source, "web") == 0 })
	must(t, os.Symlink("..2", filepath.Join(dir, "..data_tmp")))
	must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	r.until(t, "the second version", func() bool { return input(t, source, "default", "web").Service.Ports[0].Port == 81 })
}

func TestAVanishedDirectoryKeepsItsObjectsUntilItIsBack(t *testing.T) {
	dir, source, r := follow(t, map[string]string{"web.yaml": webService})
	must(t, os.Rename(dir, dir+".away"))
	r.until(t, "the trouble", func() bool { return r.logged("directory cannot be read") == 1 })
	same(t, "services", names(source), "default/web")
	must(t, os.Mkdir(dir, 0o755))
	write(t, filepath.Join(dir, "other.yaml"), jsonService("other"))
	r.until(t, "the new directory", func() bool { return names(source) == "default/other" && r.logged("can be read again") == 1 })
	write(t, filepath.Join(dir, "more.yaml"), jsonService("more"))
	r.until(t, "events of the new directory", func() bool { return names(source) == "default/more default/other" })
	must(t, os.RemoveAll(dir))
	r.until(t, "the trouble again", func() bool { return r.logged("directory cannot be read") == 2 })
}

func TestADirectoryThatIsNotThereYetIsWaitedFor(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	r := newRecorder()
	source := Manifests(dir, NodeConfig{}, slog.New(r))
	r.run(t, source)
	r.until(t, "the trouble", func() bool { return r.logged("directory cannot be read") == 1 })
	same(t, "syncs", r.synced(), 0)
	must(t, os.Mkdir(dir, 0o755))
	r.until(t, "the first list", func() bool { return r.synced() == 1 })
	write(t, filepath.Join(dir, "web.yaml"), webService)
	r.until(t, "a file", func() bool { return names(source) == "default/web" })
}

func TestTroubleIsSaidOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	r := newRecorder()
	d := Manifests(dir, NodeConfig{}, slog.New(r)).(*directory)
	look := func() {
		for range 5 {
			_, _ = d.look(nil, &changes{})
		}
	}
	look()
	same(t, "missing directory", r.logged("directory cannot be read"), 1)
	write(t, filepath.Join(dir, "bad.yaml"), "a: [")
	look()
	same(t, "directory back", r.logged("can be read again"), 1)
	same(t, "bad file", r.logged("manifest is refused"), 1)
	must(t, os.Remove(filepath.Join(dir, "bad.yaml")))
	write(t, filepath.Join(dir, "odd.yaml"), "{apiVersion: v1, kind: Pod, metadata: {name: a}}")
	look()
	same(t, "odd file", r.logged("manifest is odd"), 1)
}

func TestAFileThatCannotBeReadIsTriedAgain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "web.yaml")
	write(t, path, webService)
	r := newRecorder()
	d := Manifests(dir, NodeConfig{}, slog.New(r)).(*directory)
	_, _ = d.look(nil, &changes{})
	d.files["web.yaml"].stamp = stamp{}
	must(t, os.Remove(path))
	must(t, os.Symlink(path, path)) // a loop: the name is there and cannot be opened, not even by root
	again, err := d.look(nil, &changes{})
	if !again || err != nil || r.logged("too many levels of symbolic links") != 1 {
		t.Errorf("look gives %v, %v; log: %v", again, err, r.lines)
	}
	same(t, "services", names(d), "default/web")
	must(t, os.Remove(path))
	write(t, path, jsonService("other"))
	_, _ = d.look(nil, &changes{})
	same(t, "services", names(d), "default/other")
}

func TestAFollowedDirectoryEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Manifests(t.TempDir(), NodeConfig{}, slog.New(newRecorder())).Run(ctx, &counter{}); err != nil {
		t.Error(err)
	}
}
