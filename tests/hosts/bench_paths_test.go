// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What make bench-paths says: how long each part of the measurement lasts, how often each is made, the program that has kube-proxy (none: it
// is not measured), and the file for the tables (none: standard output).
const (
	benchPaths     = "NEARLB_BENCH_PATHS"
	benchRounds    = "NEARLB_BENCH_ROUNDS"
	benchKubeProxy = "NEARLB_BENCH_KUBE_PROXY"
	benchTables    = "NEARLB_BENCH_TABLES"
	benchXDP       = "NEARLB_BENCH_XDP" // --xdp of the nodes, over links for it (off: to compare); none: no flag
)

// bench is how paths are measured: in rounds that are interleaved, so that what else the machine does meets all alike.
type bench struct {
	lasts     time.Duration // of each measurement
	rounds    int
	kubeProxy string
	out       io.Writer
}

// What paths carry, beside kube-proxy's. It fails on errors, never on time.
func TestBenchPaths(t *testing.T) {
	b := newBench(t)
	t.Run("off the node", func(t *testing.T) { b.offTheNode(t) })
	t.Run("pods", func(t *testing.T) { b.betweenPods(t) })
	t.Run("held", func(t *testing.T) { b.byOnePod(t) })
}

func newBench(t *testing.T) *bench {
	b := &bench{kubeProxy: os.Getenv(benchKubeProxy), out: os.Stdout}
	var err error
	if b.lasts, err = time.ParseDuration(os.Getenv(benchPaths)); err != nil {
		t.Skip(benchPaths + " says how long each measurement lasts")
	}
	if b.rounds, err = strconv.Atoi(cmp.Or(os.Getenv(benchRounds), "3")); err != nil {
		t.Fatal(err)
	}
	if name := os.Getenv(benchTables); name != "" {
		file, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		b.out = file
	}
	return b
}

// measured is what one path did in one family: a figure of each round.
type measured struct {
	rate []float64 // a second
	cost []float64 // microseconds of all processors for each
}

// count measures what f does, which says how much that was.
func (m *measured) count(f func() float64) {
	began, busy := time.Now(), processorTime()
	done := f()
	m.rate = append(m.rate, done/time.Since(began).Seconds())
	m.cost = append(m.cost, float64((processorTime()-busy).Microseconds())/done)
}

// processorTime is what all processors have worked, whoever had them do it: a packet's cost falls where it is taken from the device.
func processorTime() time.Duration {
	const perSecond = 100 // of the file's unit: USER_HZ
	text, _ := os.ReadFile("/proc/stat")
	fields := strings.Fields(strings.SplitN(string(text), "\n", 2)[0])
	var ticks int64
	for i, field := range fields {
		if i == 0 || i == 4 || i == 5 || i > 7 { // the name; idle, waiting; what others took, and guests
			continue
		}
		n, _ := strconv.ParseInt(field, 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * time.Second / perSecond
}

// row is one path's line of a table: its figures, of each family, and those that they are divided by; nil: there are none.
type row struct {
	name      string
	got       *[2]measured
	of, proxy *[2]measured
}

// table prints what paths did. of says what the first ratio is to; the second one is to kube-proxy's.
func (b *bench) table(title, of string, rows []row) {
	fmt.Fprintf(b.out, "\n| %s | IPv4 | IPv6 | of %s | of kube-proxy's | processor time of one |\n|---|---:|---:|---:|---:|---:|\n", title, of)
	for _, r := range rows {
		four, six := r.got[0], r.got[1]
		fmt.Fprintf(b.out, "| %s | %s | %s | %s | %s | %.1f / %.1f µs |\n", r.name, thousands(median(four.rate)), thousands(median(six.rate)),
			ratios(r.got, r.of), ratios(r.got, r.proxy), median(four.cost), median(six.cost))
	}
}

// ratios are of both families.
func ratios(of, to *[2]measured) string {
	if to == nil || to == of {
		return "-"
	}
	ratio := func(family int) float64 { return median(of[family].rate) / median(to[family].rate) }
	return fmt.Sprintf("%.2f / %.2f", ratio(0), ratio(1))
}

// thousands writes a number with commas.
func thousands(f float64) string {
	text := strconv.FormatFloat(f, 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
