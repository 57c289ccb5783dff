// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/tests/repository"
)

const printed = `nearlb demo: three nodes in two zones
  n1 zone a: web-1 (10.244.1.10, fd24:0:0:1::a), client-1, agent process 30730
every client asks <10.96.0.10> all the time

step 2: web-1 is not ready
  expected  n1 web-2 (same zone), n2 web-2 (same node)
  seen      n1 web-2 (same zone), n2 web-2 (same node)
  arrived at every client after 75 ms; 2576 connections and datagrams, 0 lost, 0 wrong
  ok

step 4: nobody is left
  expected  n1 refused, n2 refused
  seen      n1 refused, n2 web-3 (other zone)
  slowest refusal after 18 ms
  FAILED: 3 wrong

all 7 steps came out as they should, in 34.6 s
`

func TestThePictureHasWhatTheNextRunPrintsToo(t *testing.T) {
	want := []string{"$ make demo", "nearlb demo: three nodes in two zones", "every client asks <10.96.0.10> all the time", "",
		"step 2: web-1 is not ready", "  n1 web-2 (same zone), n2 web-2 (same node)  ok", "",
		"step 4: nobody is left", "  n1 refused, n2 web-3 (other zone)", "  FAILED: 3 wrong", "", "all 7 steps came out as they should"}
	lines := lasting(printed)
	if !slices.Equal(lines, want) {
		t.Fatalf("got %q\nwant %q", lines, want)
	}
	for name, c := range themes {
		picture := svg(lines, c)
		if got := textOf(t, picture); !slices.Equal(got, slices.DeleteFunc(slices.Clone(want), func(line string) bool { return line == "" })) {
			t.Errorf("%s: %q", name, got)
		}
		for part, colour := range map[string]string{"web-2 (same zone)": c.zone, "web-2 (same node)": c.node, "web-3 (other zone)": c.far, "refused": c.refused, "FAILED: 3 wrong": c.refused, "ok": c.node} {
			if !strings.Contains(picture, `<tspan fill="`+colour+`">`+part+`</tspan>`) {
				t.Errorf("%s: %q has not the colour %s", name, part, colour)
			}
		}
	}
}

// The pictures in docs/ are of one run, and need nothing from elsewhere.
func TestThePicturesInTheRepositoryAreOfOneRun(t *testing.T) {
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	var before []string
	for name := range themes {
		text, err := os.ReadFile(filepath.Join(root, "docs", "demo-"+name+".svg"))
		if err != nil {
			t.Fatal(err)
		}
		lines := textOf(t, string(text))
		if before != nil && !slices.Equal(lines, before) {
			t.Errorf("light and dark differ: %q, %q", before, lines)
		}
		before = lines
		if !slices.Contains(lines, "all 7 steps came out as they should") {
			t.Errorf("%s: %q", name, lines)
		}
		for _, outside := range []string{"href", "url(", "@import", "<script"} {
			if strings.Contains(string(text), outside) {
				t.Errorf("%s has %s", name, outside)
			}
		}
	}
}

// textOf gives the lines of a picture.
func textOf(t *testing.T, picture string) (lines []string) {
	t.Helper()
	inside := false
	for decoder := xml.NewDecoder(strings.NewReader(picture)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return lines
		} else if err != nil {
			t.Fatalf("read the picture: %v", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			if token.Name.Local == "text" {
				inside, lines = true, append(lines, "")
			}
		case xml.EndElement:
			inside = inside && token.Name.Local != "text"
		case xml.CharData:
			if inside {
				lines[len(lines)-1] += string(token)
			}
		}
	}
}
