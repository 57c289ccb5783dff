// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Failing tests print the end of what was logged while they ran, once, without what agents log for each pod.
func TestAFailurePrintsTheEndOfWhatWasLoggedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	add := func(name, text string) {
		file, err := os.OpenFile(filepath.Join(dir, "log", name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	l := Logs{Dir: dir}
	add("n1-agent.log", "of another test\n")
	began := map[string]int{filepath.Join(dir, "log", "n1-agent.log"): len("of another test\n")}
	add("n1-agent.log", "level=INFO "+everyday+" device=pod1\nwhy\n")
	add("control-apiserver.log", strings.Repeat("noise\n", 1000)+"last\n")
	for _, want := range []string{"--- control-apiserver.log of TestX\n" + strings.Repeat("noise\n", mostControl/6-1) + "last\n\n--- n1-agent.log of TestX\nwhy\n\n", ""} {
		var out strings.Builder
		if l.show(&out, "TestX", began); out.String() != want {
			t.Errorf("printed %q, want %q", out.String(), want)
		}
	}
}
