// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// streamed is a stream of so many connections in each second, of which the first ones fail or take long.
func streamed(perSecond ...[3]int) (all []sample) {
	for second, n := range perSecond {
		for i := range n[0] {
			s := sample{began: time.Duration(second)*time.Second + time.Duration(i)*time.Millisecond, took: time.Millisecond}
			s.failed = i < n[1]
			if i >= n[1] && i < n[1]+n[2] {
				s.took = 1100 * time.Millisecond
			}
			all = append(all, s)
		}
	}
	return all
}

func TestRatesAreOfConnectionsThatAreThere(t *testing.T) {
	all := streamed([3]int{100, 0, 0}, [3]int{100, 10, 20}, [3]int{100, 0, 0})
	if got := rates(all, 3*time.Second); !slices.Equal(got, []int{100, 70, 120}) {
		t.Errorf("rates %v", got)
	}
	if got := share(within(all, time.Second, 2*time.Second)); got != "30 of 100 (30 %), 10 failed" {
		t.Errorf("share %q", got)
	}
	if got := share(within(all, 2*time.Second, 3*time.Second)); got != "0 of 100" {
		t.Errorf("share %q", got)
	}
}

func TestWhatFailedTookLongerThanAnything(t *testing.T) {
	all := streamed([3]int{100, 2, 10})
	for p, want := range map[int]string{50: "1.0 ms", 98: "1.1 s", 99: "failed"} {
		if got := spread(all, p); got != want {
			t.Errorf("p%d is %s, want %s", p, got, want)
		}
	}
}

func TestThePageHasARowForEachFigure(t *testing.T) {
	var played []outcome
	for _, s := range (options{quick: 1}).scenes() {
		f := figures{all: streamed([3]int{100, 0, 0}, [3]int{100, 10, 0}), lasts: 2 * time.Second, at: time.Second, told: 2 * time.Second}
		o := outcome{scene: s, figures: map[string]figures{"nearlb": f}}
		if !s.nearlbAlone {
			o.figures["kube-proxy"] = f
		}
		played = append(played, o)
	}
	for line := range strings.Lines(table(played)) {
		if cells := strings.Split(line, "|"); len(cells) != 6 || strings.Contains(cells[3], "-") && !strings.Contains(line, "---") {
			t.Errorf("line %q", line)
		}
	}
	for name, c := range themes {
		for read := xml.NewDecoder(strings.NewReader(chart(played, c))); ; {
			if _, err := read.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}

// A run whose times are divided says what it does: what it prints is not the page's.
func TestAQuickRunTellsItsOwnTimes(t *testing.T) {
	titles := func(quick int) (all []string) {
		for _, s := range (options{quick: quick}).scenes() {
			for _, r := range s.rows {
				all = append(all, r.title)
			}
		}
		return all
	}
	whole, quick := strings.Join(titles(1), "\n"), strings.Join(titles(10), "\n")
	for said, instead := range map[string]string{"50 restarts": "5 restarts", "50 s later": "5 s later", "in the 28 seconds": "in the 2.8 seconds", "hang for 15 s": "hang for 1.5 s"} {
		if !strings.Contains(whole, said) || strings.Contains(quick, said) || !strings.Contains(quick, instead) {
			t.Errorf("%q, and %q of a quick run, in\n%s\n%s", said, instead, whole, quick)
		}
	}
}

// The checksum that the kernel would write: RFC 1071's sum of all words, the checksum's included, is all ones.
func TestForgedSYNsHaveTheRightChecksum(t *testing.T) {
	from, to := addresses["web"][0], addresses["other"][0]
	segment := make([]byte, 20)
	segment[1], segment[13] = 80, 2
	sum := checksum4(from, to, segment)
	segment[16], segment[17] = byte(sum>>8), byte(sum)
	if again := checksum4(from, to, segment); again != 0 {
		t.Errorf("with its checksum %#x the sum is %#x", sum, again)
	}
}
