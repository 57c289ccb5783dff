// SPDX-License-Identifier: Apache-2.0

package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// Two checkouts differ in times, rights and order of files: archives of them do not.
func TestTheSameFilesMakeTheSameArchive(t *testing.T) {
	var archives []string
	for i, mode := range []os.FileMode{0o600, 0o644} {
		dir := t.TempDir()
		for _, name := range []string{"b/c.txt", "a.txt"} {
			file := filepath.Join(dir, name)
			must(t, os.MkdirAll(filepath.Dir(file), 0o755))
			must(t, os.WriteFile(file, []byte("of "+name), mode))
			must(t, os.Chtimes(file, time.Time{}, time.Unix(int64(i+1)*1e9, 0)))
		}
		files, err := Tree(dir, "top")
		must(t, err)
		files["nearlb"] = File{Content: []byte("program"), Program: true}
		file := filepath.Join(dir, "archive.tar.gz")
		sum, err := Write(file, files)
		must(t, err)
		packed, err := os.ReadFile(file)
		must(t, err)
		if Sum(packed) != sum {
			t.Errorf("the sum is %s, of the file %s", sum, Sum(packed))
		}
		archives = append(archives, string(packed))
	}
	if archives[0] != archives[1] {
		t.Error("the archives differ")
	}
	want := []string{"nearlb 755 program", "top/ 755 ", "top/a.txt 644 of a.txt", "top/b/ 755 ", "top/b/c.txt 644 of b/c.txt"}
	if got := listed(t, archives[0]); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func listed(t *testing.T, archive string) (all []string) {
	t.Helper()
	zipped, err := gzip.NewReader(strings.NewReader(archive))
	must(t, err)
	for in := tar.NewReader(zipped); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		must(t, err)
		content, err := io.ReadAll(in)
		must(t, err)
		if header.Uid != 0 || header.Gid != 0 || header.ModTime.Unix() > 0 {
			t.Errorf("%s is of %d:%d, %v", header.Name, header.Uid, header.Gid, header.ModTime)
		}
		all = append(all, fmt.Sprintf("%s %o %s", header.Name, header.Mode, content))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestKrewsManifestHasEveryPlatform(t *testing.T) {
	template, err := os.ReadFile("../../cmd/kubectl-nearlb/krew.yaml")
	must(t, err)
	sums := map[string]string{}
	for _, p := range PluginPlatforms {
		name := p.Archive("kubectl-nearlb", "v1.2.3")
		sums[name] = Sum([]byte(name))
	}
	text, err := Krew(string(template), "v1.2.3", "https://example.com/v1.2.3", sums)
	must(t, err)
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
			}
		}
	}
	must(t, yaml.UnmarshalStrict([]byte(text), &map[string]any{}))
	must(t, yaml.Unmarshal([]byte(text), &manifest))
	if manifest.Spec.Version != "v1.2.3" || len(manifest.Spec.Platforms) != 6 {
		t.Fatalf("got\n%s", text)
	}
	for _, p := range manifest.Spec.Platforms {
		os, arch := p.Selector.MatchLabels["os"], p.Selector.MatchLabels["arch"]
		name := "kubectl-nearlb_v1.2.3_" + os + "_" + arch + ".tar.gz"
		bin := map[bool]string{false: "kubectl-nearlb", true: "kubectl-nearlb.exe"}[os == "windows"]
		if p.URI != "https://example.com/v1.2.3/"+name || p.SHA256 != sums[name] || p.Bin != bin {
			t.Errorf("%+v", p)
		}
	}
	delete(sums, "kubectl-nearlb_v1.2.3_darwin_arm64.tar.gz")
	if _, err := Krew(string(template), "v1.2.3", "https://example.com", sums); err == nil {
		t.Error("an archive without a sum is no error")
	}
}

func TestWhatAProgramContainsIsListed(t *testing.T) {
	program := filepath.Join(t.TempDir(), "kubectl-nearlb")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "../../cmd/kubectl-nearlb").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := Contents(program, "v1.2.3")
	must(t, err)
	again, err := Contents(program, "v1.2.3")
	must(t, err)
	if !bytes.Equal(text, again) {
		t.Error("twice is not the same")
	}
	var list bill
	must(t, json.Unmarshal(text, &list))
	refs := map[string]bool{list.Metadata.Component.Ref: true}
	for _, c := range list.Components {
		if refs[c.Ref] || c.Version == "" || c.URL != c.Ref {
			t.Errorf("component %+v", c)
		}
		refs[c.Ref] = true
	}
	for _, begin := range []string{"pkg:golang/std@1.", "pkg:golang/sigs.k8s.io/yaml@v1.", "pkg:golang/k8s.io/client-go@v0."} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(refs)), func(ref string) bool { return strings.HasPrefix(ref, begin) }) {
			t.Errorf("%s... is not among %v", begin, refs)
		}
	}
}

func TestAReleaseHasAVersion(t *testing.T) {
	for version, good := range map[string]bool{"v1.2.3": true, "v0.10.0-rc.1": true, "1.2.3": false, "v1.2": false, "v01.2.3": false, "74dcdae": false, "v1.2.3-4-gabc-dirty ": false} {
		if err := CheckVersion(version); (err == nil) != good {
			t.Errorf("%q: %v", version, err)
		}
	}
}

func TestSumsAreOfAllFilesButThemselves(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b", "a", "SHA256SUMS", "SHA256SUMS.sigstore.json"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644))
	}
	got, err := Sums(dir)
	must(t, err)
	if want := Sum([]byte("a")) + "  a\n" + Sum([]byte("b")) + "  b\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
