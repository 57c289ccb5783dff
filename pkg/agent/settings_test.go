// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mount writes a directory as kubelets do: files are links to those of a directory that a link names, which is exchanged as a whole.
func mount(t *testing.T, dir, version string, values map[string]string) {
	t.Helper()
	data := filepath.Join(dir, "..version_"+version)
	if err := os.MkdirAll(data, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, value := range values {
		if err := os.WriteFile(filepath.Join(data, name), []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	next := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(filepath.Base(data), next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	for name := range values {
		_ = os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)) // is there from the version before
	}
	all, err := filepath.Glob(filepath.Join(dir, "[a-z]*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if _, is := values[filepath.Base(path)]; !is {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestAChangedConfigMapIsToldUntilItIsAsItWas(t *testing.T) {
	dir := t.TempDir()
	mount(t, dir, "1", map[string]string{"ejection": "on\n", "zone": "a"})
	settings, err := ReadSettings(dir)
	if err != nil || len(settings.Values) != 2 || settings.Values["ejection"] != "on" {
		t.Fatalf("%+v, %v", settings, err)
	}
	var log strings.Builder
	d := &daemon{options: Options{Settings: settings}, diary: newDiary(), log: slog.New(slog.NewTextHandler(&log, nil))}
	told := func() string {
		d.lookAtSettings()
		var s Status
		d.diary.fill(&s)
		if d.outdated.Load() != (len(s.Trouble) == 1) {
			t.Errorf("the metrics say %v, the status %v", d.outdated.Load(), s.Trouble)
		}
		return strings.Join(s.Trouble, "")
	}
	if text := told(); text != "" {
		t.Errorf("nothing changed: %s", text)
	}
	mount(t, dir, "2", map[string]string{"ejection": "off", "zone": "a", "xdp": "generic"})
	text := told()
	for _, want := range []string{"restart", `ejection is "off", and this agent started with "on"`, `xdp is "generic", and this agent started with ""`} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
	if told(); strings.Count(log.String(), "restart needed") != 1 {
		t.Errorf("one change is logged as\n%s", log.String())
	}
	mount(t, dir, "3", map[string]string{"zone": "a", "ejection": "on"})
	if text := told(); text != "" {
		t.Errorf("all is as it was: %s", text)
	}
}

// A ConfigMap that is optional, and does not exist, may come later.
func TestAConfigMapThatComesLaterIsTold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "config")
	settings, err := ReadSettings(dir)
	if err != nil || len(settings.Values) != 0 || settings.changed() != nil {
		t.Fatalf("without one: %+v, %v, %v", settings, err, settings.changed())
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mount(t, dir, "1", map[string]string{"api-server": "https://192.0.2.1:6443"})
	if settings.changed() == nil {
		t.Error("one that came is not told of")
	}
}
