// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

func newScreen() (*topScreen, func(keys ...string)) {
	o := &topOptions{view: topServices, sort: "new", interval: time.Second}
	screen := &topScreen{options: o}
	g := gains()
	screen.take("n1", &g)
	return screen, func(keys ...string) {
		for _, key := range keys {
			screen.press(key)
		}
	}
}

// The screens of all views, the help and the filter, at 80 and 160 columns: testdata/top/screen_*.
func TestTopScreensFitTheirTerminals(t *testing.T) {
	for name, keys := range map[string][]string{
		"services": nil, "backends": {"2"}, "clients": {"3"}, "zones": {"4"}, "nodes": {"5"}, "help": {"h"}, "filter": {"/", "W", "e", "b"},
		"nothing": {"/", "x", "x", "enter"}, "paused": {"p", "z"}, "sorted": {"f"},
	} {
		for _, width := range []int{80, 160} {
			t.Run(fmt.Sprintf("%s/%d", name, width), func(t *testing.T) {
				screen, press := newScreen()
				press(keys...)
				lines := screen.frame(width, 20)
				if len(lines) != 20 {
					t.Errorf("%d lines of 20", len(lines))
				}
				goldenOf(t, filepath.Join("top", fmt.Sprintf("screen_%s_%d.txt", name, width)), width, []byte(strings.Join(lines, "\n")+"\n"))
			})
		}
	}
}

func TestTopScreensFitTinyTerminals(t *testing.T) {
	screen, _ := newScreen()
	for _, size := range [][2]int{{0, 0}, {1, 1}, {10, 2}, {20, 5}, {300, 3}} {
		lines := screen.frame(size[0], size[1])
		if len(lines) > max(size[1], 1) {
			t.Errorf("%d lines on a terminal of %v", len(lines), size)
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > size[0] {
				t.Errorf("%q on a terminal of %v", line, size)
			}
		}
	}
}

func TestKeysOfTop(t *testing.T) {
	screen, press := newScreen()
	o := screen.options
	for _, step := range []struct {
		keys []string
		want string
	}{
		{[]string{">"}, "services open false"}, {[]string{"left", "<"}, "services name false"}, {[]string{"right", "4", "f"}, "zones failed false"},
		{[]string{"/", "q", "1"}, "zones failed true"}, {[]string{"backspace", "enter"}, "zones failed false"}, {[]string{"2", "a"}, "backends name false"},
	} {
		press(step.keys...)
		if got := fmt.Sprintf("%s %s %v", o.view, o.sort, screen.typing); got != step.want {
			t.Errorf("after %q: %s, want %s", step.keys, got, step.want)
		}
	}
	if screen.filter != "q" {
		t.Errorf("the filter is %q", screen.filter)
	}
	press("esc", "j", "j", "k", "h", "x", "z")
	if screen.filter != "" || screen.help || !o.idle {
		t.Errorf("%+v", screen)
	}
	for _, key := range []string{"q", "ctrl-c"} {
		if !screen.press(key) {
			t.Errorf("%s does not quit", key)
		}
	}
}

func TestKeysAreToldApart(t *testing.T) {
	got := pressed("q\x1b[A/\x1b[15~\x1b[Dé\r\x1b\x7f\x03\x1b[1;5")
	if want := []string{"q", "up", "/", "left", "é", "enter", "esc", "backspace", "ctrl-c"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSparksShowTheLastValues(t *testing.T) {
	for _, c := range []struct {
		values []float64
		width  int
		want   string
	}{{[]float64{0, 1, 2, 4, 8}, 5, "▁▁▂▄█"}, {[]float64{9, 0, 0}, 2, "▁▁"}, {nil, 9, ""}, {[]float64{3}, 0, ""}} {
		if got := sparkline(c.values, c.width); got != c.want {
			t.Errorf("%v in %d: %s, want %s", c.values, c.width, got, c.want)
		}
	}
	screen, _ := newScreen()
	g := gains()
	for range 3 * sparks {
		screen.take("n1", &g)
	}
	for view, of := range screen.recent {
		for row, r := range of.rows {
			if len(r.values) != sparks || len(of.sum) != sparks {
				t.Errorf("%s, %v keeps %d values, their sum %d", view, row, len(r.values), len(of.sum))
			}
		}
	}
}

// Whoever turns to another view sees what it was like before, and on the way back what came meanwhile.
func TestSparksGoOnInViewsThatAreNotShown(t *testing.T) {
	screen, press := newScreen()
	g, idle := gains(), gains()
	idle.Ports, idle.Backends, idle.Clients = nil, nil, nil
	for _, of := range []*maps.Gains{&idle, &g} {
		screen.take("n1", of)
	}
	const want = "█▁█"
	for _, view := range []struct{ key, row string }{{"2", "10.244.1.2:8080"}, {"3", "fd00::9"}, {"4", "b "}, {"5", "n2"}, {"1", "prod/web:http"}} {
		press(view.key)
		lines := screen.frame(160, 20)
		if !strings.HasSuffix(lines[1], "  "+want) {
			t.Errorf("the sum of view %s: %q, want %s", view.key, lines[1], want)
		}
		row := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, view.row) })
		if row < 0 || !strings.HasSuffix(strings.TrimSpace(lines[row]), " "+want) {
			t.Errorf("view %s has no row %q with %s:\n%s", view.key, view.row, want, strings.Join(lines, "\n"))
		}
	}
	for range sparks {
		screen.take("n1", &idle)
	}
	for view, of := range screen.recent {
		if len(of.rows) > 0 {
			t.Errorf("%s: of what is idle for %d intervals sparks are kept: %v", view, sparks, of.rows)
		}
	}
}

// A terminal of its own: what is drawn on it, and its state, are read at the other end.
type pty struct {
	t          *testing.T
	far, near  *os.File // what a person has, and what the program has
	seen       chan string
	everything bytes.Buffer
}

func newPTY(t *testing.T, width, height uint16) *pty {
	t.Helper()
	far, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	number, err := unix.IoctlGetInt(int(far.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(far.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	near, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &pty{t: t, far: far, near: near, seen: make(chan string)}
	p.resize(width, height)
	go func() {
		defer close(p.seen)
		buffer := make([]byte, 1<<16)
		for {
			n, err := far.Read(buffer)
			if err != nil {
				return
			}
			p.seen <- string(buffer[:n])
		}
	}()
	t.Cleanup(func() { near.Close(); far.Close() })
	return p
}

func (p *pty) resize(width, height uint16) {
	p.t.Helper()
	if err := unix.IoctlSetWinsize(int(p.far.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pty) press(keys string) {
	p.t.Helper()
	if _, err := p.far.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

// shows waits for a frame that has a text.
func (p *pty) shows(wanted string) (frame string) {
	p.t.Helper()
	return p.await(wanted, func(frame string) bool { return strings.Contains(frame, wanted) })
}

// await waits for a frame that is as wanted.
func (p *pty) await(wanted string, is func(frame string) bool) (frame string) {
	p.t.Helper()
	patience := time.After(2 * time.Minute)
	for {
		select {
		case text := <-p.seen:
			p.everything.WriteString(text)
		case <-patience:
			p.t.Fatalf("no frame shows %q:\n%q", wanted, p.everything.String())
		}
		frames := strings.Split(p.everything.String(), "\x1b[H")
		if frame = frames[len(frames)-1]; is(frame) {
			return strings.NewReplacer("\x1b[K", "", "\x1b[J", "", "\r", "").Replace(frame)
		}
	}
}

// Keys are pressed and the screen is read, on live tables; the terminal is as it was afterwards, however it ends.
func TestTopOnATerminal(t *testing.T) {
	privileged.Require(t)
	for name, end := range map[string]func(*pty, context.CancelFunc){
		"by its key":  func(p *pty, _ context.CancelFunc) { p.press("q") },
		"by ctrl-c":   func(p *pty, _ context.CancelFunc) { p.press("\x03") },
		"by a signal": func(_ *pty, stop context.CancelFunc) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			pins := publishedPins(t)
			p := newPTY(t, 80, 12)
			before, err := term.GetState(int(p.near.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			o := &topOptions{view: topServices, sort: "name", interval: 100 * time.Millisecond, format: command.FormatTable}
			o.live.pins.pinPath, o.live.lockDir = pins, t.TempDir()
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			ended := make(chan error, 1)
			go func() { ended <- o.run(ctx, p.near, p.near) }()
			p.shows("Nothing goes on")
			p.press("z")
			p.shows("namespace-0/service-0:http")
			p.press("/1")
			p.shows("/1_")
			p.press("\r")
			if frame := p.shows("filter 1"); strings.Contains(frame, "service-0") || !strings.Contains(frame, "service-1") {
				t.Errorf("filtered:\n%s", frame)
			}
			p.press("2")
			p.shows("nearlb top backends")
			p.press("h")
			p.shows("this help")
			p.press("h\x1b")
			p.shows("10.244.1.1:8080")
			p.press("p")
			p.shows("PAUSED")
			p.resize(40, 6)
			p.press("j")
			p.await("PAUSED on six lines", func(frame string) bool { return strings.Contains(frame, "PAUSED") && strings.Count(frame, "\n") == 5 })
			end(p, stop)
			p.everything.Reset()
			p.shows(screenClose)
			if err := <-ended; err != nil {
				t.Errorf("ended with %v", err)
			}
			if after, err := term.GetState(int(p.near.Fd())); err != nil || *after != *before {
				t.Errorf("the terminal is another: %v, %v", after, err)
			}
		})
	}
}

// publishedPins are tables with two Services, as an agent pins them.
func publishedPins(t *testing.T) string {
	t.Helper()
	pins := filepath.Join(privileged.Bpffs(t), "pins")
	objects, err := bpf.Load(bpf.Options{PinPath: pins, Sizes: bpf.Sizes{Frontends: 64, Records: 64, Slots: 1 << 16, Backends: 64, FlowSets: 16, Services: 64, Names: 64}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { objects.Close() })
	tables, err := maps.Open(&objects.NearlbMaps)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		if _, err := tables.Apply(screenService(n)); err != nil {
			t.Fatal(err)
		}
	}
	return pins
}

// screenService is Service n with one endpoint on node n1.
func screenService(n int) lb.Decision {
	name := lb.ServiceName{Namespace: fmt.Sprintf("namespace-%d", n), Name: fmt.Sprintf("service-%d", n)}
	key := lb.PortKey{Name: "http", Protocol: lb.TCP}
	return decide.Decide(lb.Input{
		Service: lb.Service{Name: name, Type: lb.TypeClusterIP, Internal: lb.PolicyCluster, External: lb.PolicyCluster,
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(n + 1)})}, Ports: []lb.ServicePort{{Name: "http", Protocol: lb.TCP, Port: 80}}},
		Endpoints: []lb.Endpoint{{Port: key, Ready: true, Serving: true, Node: "n1", Zone: "a", Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(n + 1)}), 8080)}},
	}, lb.Node{Name: "n1", Zone: "a"})
}
