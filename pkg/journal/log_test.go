// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func change(n int) []byte {
	line, err := json.Marshal(Change{Node: "n1", Time: time.Unix(int64(n), 0).UTC(), Service: "prod/web", What: fmt.Sprintf("what-%d", n), Because: "Service prod/web"})
	if err != nil {
		panic(err)
	}
	return line
}

// whats are the numbers of the changes in lines.
func whats(t *testing.T, lines [][]byte) (all []string) {
	t.Helper()
	for _, line := range lines {
		var c Change
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, strings.TrimPrefix(c.What, "what-"))
	}
	return all
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// G4: what changed is there after each restart.
func TestALogGoesOnWhereItsFileEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes.jsonl")
	for start := range 3 {
		l, err := OpenLog(path, 1<<20)
		check(t, err)
		l.Add(change(2 * start))
		l.Add(change(2*start + 1))
		check(t, l.Write())
		check(t, l.Write()) // there is nothing more to write
	}
	lines, err := ReadLog(path, 1<<20)
	check(t, err)
	if got := strings.Join(whats(t, lines), " "); got != "0 1 2 3 4 5" {
		t.Errorf("got %s", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestATornLastLineIsSkippedAndTheNextIsNot(t *testing.T) {
	for cut := 1; cut < len(change(1)); cut += 7 {
		path := filepath.Join(t.TempDir(), "changes.jsonl")
		check(t, os.WriteFile(path, append(append(change(0), '\n'), change(1)[:cut]...), 0o600))
		l, err := OpenLog(path, 1<<20)
		check(t, err)
		l.Add(change(2))
		check(t, l.Write())
		lines, err := ReadLog(path, 1<<20)
		check(t, err)
		if got := strings.Join(whats(t, lines), " "); got != "0 2" {
			t.Fatalf("torn after %d bytes: %s", cut, got)
		}
	}
}

func TestWhatIsNoChangeIsNotReadBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes.jsonl")
	long, err := json.Marshal(Change{Time: time.Unix(1, 0), What: strings.Repeat("x", longestLine)})
	check(t, err)
	check(t, os.WriteFile(path, slices.Concat([]byte("\x00\x00\n[]\n{}\n{\"what\":\"x\"}\n\"a\"\n"), long, []byte("\n"), change(7), []byte("\n")), 0o600))
	lines, err := ReadLog(path, 1<<20)
	check(t, err)
	if got := strings.Join(whats(t, lines), " "); got != "7" {
		t.Errorf("got %s", got)
	}
}

func TestAFileIsNoLargerThanItMayBe(t *testing.T) {
	const limit = 8192
	path := filepath.Join(t.TempDir(), "changes.jsonl")
	l, err := OpenLog(path, limit)
	check(t, err)
	for n := range 1000 {
		l.Add(change(n))
		if n%3 == 0 {
			check(t, l.Write())
		}
		for _, file := range []string{path, former(path)} {
			if info, err := os.Stat(file); err == nil && info.Size() > limit {
				t.Fatalf("%s has %d bytes", file, info.Size())
			}
		}
	}
	check(t, l.Write())
	again, err := OpenLog(path, limit)
	check(t, err)
	lines, _, _, _ := again.From(0)
	got := whats(t, lines)
	if len(got) < 20 || got[len(got)-1] != "999" {
		t.Errorf("of 1000 lines %v are left", got)
	}
	check(t, os.WriteFile(path, make([]byte, 10*limit), 0o600))
	if text, err := readBounded(path, limit); err != nil || len(text) > limit+longestLine {
		t.Errorf("%d bytes are read of a file that somebody made large, %v", len(text), err)
	}
}

// A file that cannot be put aside has neither more than it may have nor a line twice, and what it has no room for is not lost.
func TestAFileThatCannotBePutAsideDoesNotGrow(t *testing.T) {
	const limit, lines = 4096, 20
	path := filepath.Join(t.TempDir(), "changes.jsonl")
	l, err := OpenLog(path, limit)
	check(t, err)
	check(t, os.Mkdir(former(path), 0o700))
	refused := 0
	for n := range lines * 2 {
		l.Add(change(n))
		if l.Write() != nil {
			refused++
		}
	}
	text, err := os.ReadFile(path)
	check(t, err)
	if refused == 0 || len(text) > limit {
		t.Errorf("%d times refused, %d bytes", refused, len(text))
	}
	check(t, os.Remove(former(path)))
	check(t, l.Write())
	kept, err := ReadLog(path, limit)
	check(t, err)
	var want []string
	for n := range lines * 2 {
		want = append(want, fmt.Sprint(n))
	}
	if got := whats(t, kept); !slices.Equal(got, want) {
		t.Errorf("got %v, want each line once", got)
	}
}

// Nothing else need come.
func TestWhatCouldNotBeWrittenIsWrittenLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "changes.jsonl")
		l, err := OpenLog(path, 1<<20)
		check(t, err)
		check(t, os.Mkdir(path, 0o700))
		l.Add(change(1))
		var tries []error
		ctx, end := context.WithCancel(t.Context())
		kept := make(chan struct{})
		go func() { l.Keep(ctx, func(err error) { tries = append(tries, err) }); close(kept) }()
		synctest.Wait()
		check(t, os.Remove(path))
		time.Sleep(writeAgain + writePause)
		end()
		<-kept
		if len(tries) != 2 || tries[0] == nil || tries[1] != nil {
			t.Errorf("tries ended with %v", tries)
		}
		lines, err := ReadLog(path, 1<<20)
		check(t, err)
		if got := strings.Join(whats(t, lines), " "); got != "1" {
			t.Errorf("got %q", got)
		}
	})
}

func TestALinkIsNeitherReadNorWritten(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "changes.jsonl"), filepath.Join(dir, "other")
	check(t, os.WriteFile(other, append(change(1), '\n'), 0o600))
	check(t, os.Symlink(other, path))
	l, err := OpenLog(path, 1<<20)
	if lines, _, _, _ := l.From(0); err == nil || len(lines) != 0 {
		t.Errorf("read %q, %v", lines, err)
	}
	l.Add(change(2))
	if err := l.Write(); err == nil {
		t.Error("wrote through a link")
	}
	check(t, os.Remove(path))
	check(t, l.Write()) // what could not be written is not lost
	lines, err := ReadLog(path, 1<<20)
	check(t, err)
	if got := strings.Join(whats(t, lines), " "); got != "2" {
		t.Errorf("got %q", got)
	}
}

func TestRemovingALogNamesItsFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "changes.jsonl")
	l, err := OpenLog(path, 10)
	check(t, err)
	for n := range 2 { // the first is put aside
		l.Add(change(n))
		check(t, l.Write())
	}
	removed, err := RemoveLog(path)
	check(t, err)
	if want := []string{former(path), path}; !slices.Equal(removed, want) {
		t.Errorf("removed %v, want %v", removed, want)
	}
}
