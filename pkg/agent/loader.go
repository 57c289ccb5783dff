// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/capability"
)

// An agent gives away what it takes to load programs. Tables that grow want new ones, as programs know their tables by number:
// a process of its own, started before that, keeps the privilege. It loads nearlb's programs and nothing else, from what its
// parent asks over a pipe, reads nothing from anybody else, and ends with it.

// loadRequest is what the loader may be asked.
type loadRequest struct {
	Layer3   *bpf.Loaded // load the programs for devices without an Ethernet header for these; nil: load everything else
	Tables   bool        // make tables alone, where there are none (bpf.MakeTables)
	Sizes    bpf.Sizes
	Grow     bool // see bpf.Options.Exchange
	Reload   bool
	PinPath  string
	SocketLB attach.SocketMode
	Shortcut ShortcutMode
	Tunnel   uint16
	XDP      bool
	XDPOpens bool // in drivers, where it takes packets out of the tunnel
	XDPFrags bool // in drivers, which may have frames of several pieces
	Names    bool // the programs answer names
}

func (q loadRequest) options() bpf.Options {
	o := Options{SocketLB: q.SocketLB, Shortcut: q.Shortcut, CarryPort: q.Tunnel, Names: NameOptions{On: q.Names, FastPath: q.Names}}
	return bpf.Options{Sizes: q.Sizes, Lean: true, Exchange: q.Grow, Reuse: !q.Reload, PinPath: q.PinPath, Knobs: o.knobs(), NoSocketHooks: q.SocketLB == attach.NoSockets, XDP: q.XDP, XDPOpens: q.XDPOpens, XDPFrags: q.XDPFrags}
}

// Constants of the programs that follow from flags (bpf/lib/config.h).
const (
	knobEveryNamespace = "every_namespace" // the sockets of pods are served as well
	knobShortcut       = "shortcut_there"  // packets may leave past the host's stack
	knobTunnel         = "tunnel_there"    // clients off the node may go to backends on other nodes through the tunnel
	knobNames          = "dns_there"       // questions of pods for names are answered from tables
)

// knobs are those of the options that are not as in the object.
func (o Options) knobs() map[string]any {
	knobs := map[string]any{}
	if o.SocketLB == attach.AllSockets {
		knobs[knobEveryNamespace] = uint8(1)
	}
	if o.Shortcut == ShortcutAuto || o.Shortcut == ShortcutOn {
		knobs[knobShortcut] = uint8(1)
	}
	if o.tunnelPort() != 0 {
		knobs[knobTunnel] = uint8(1)
	}
	if o.Names.On && o.Names.FastPath {
		knobs[knobNames] = uint8(1)
	}
	return knobs
}

type loadAnswer struct {
	Loaded bpf.Loaded
	Error  string
}

// request is what a plan asks for.
func (o Options) request(p plan) loadRequest {
	return loadRequest{Tables: p.fresh, Sizes: p.sizes, Grow: p.grow, Reload: o.Reload, PinPath: o.PinPath, SocketLB: o.SocketLB, Shortcut: o.Shortcut, Tunnel: o.tunnelPort(), XDP: o.XDP.On(), XDPOpens: o.XDP.Opens() && o.tunnelPort() != 0,
		XDPFrags: o.XDP.InDriver(), Names: o.Names.On && o.Names.FastPath}
}

// answer does what is asked.
func (q loadRequest) answer() (a loadAnswer) {
	if q.Layer3 != nil {
		a.Error = bpf.Text(bpf.HandLayer3(q.options(), *q.Layer3))
		return a
	}
	load := bpf.Load
	if q.Tables {
		load = bpf.MakeTables
	}
	objects, err := load(q.options())
	if err == nil {
		a.Loaded = objects.Hand()
		err = objects.Close()
	}
	a.Error = bpf.Text(err)
	return a
}

// loader is the process, as the agent sees it.
type loader struct {
	mu    sync.Mutex
	in    *json.Encoder
	out   *json.Decoder
	leave func()                 // has it end
	ended atomic.Pointer[string] // how it ended; nil: it has not
}

// gone says what follows when the loader has ended; nil while it lives, and where there is none.
func (l *loader) gone() error {
	if l == nil {
		return nil
	}
	if how := l.ended.Load(); how != nil {
		return fmt.Errorf("the process that may load programs ended (%s): %w", *how, errNoLoader)
	}
	return nil
}

// errNoLoader says what follows where nobody may load programs.
var errNoLoader = errors.New("tables do not grow, and devices without an Ethernet header that come get no programs, until the agent is started again")

func newLoader(in io.WriteCloser, out io.ReadCloser) *loader {
	leave := func() {
		_ = in.Close()
		_ = out.Close()
	}
	return &loader{in: json.NewEncoder(in), out: json.NewDecoder(out), leave: leave}
}

// startLoader starts it; it ends with this process, however that ends. When it ends, tell is called.
func startLoader(command []string, tell func()) (*loader, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Args[0] = os.Args[0] // the same program by the same name
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start loader: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start loader: %w", err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start loader: %w", err)
	}
	l := newLoader(in, out)
	go func() { // the next request finds the pipe closed
		_ = cmd.Wait()
		how := cmd.ProcessState.String()
		l.ended.Store(&how)
		tell()
	}()
	return l, nil
}

// load does not wait for the answer any longer than ctx lasts, and leaves the loader then.
func (l *loader) load(ctx context.Context, q loadRequest) (bpf.Loaded, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer context.AfterFunc(ctx, l.leave)()
	var a loadAnswer
	if err := errors.Join(l.in.Encode(q), l.out.Decode(&a)); err != nil {
		return a.Loaded, fmt.Errorf("ask the process that may load programs: %w: %w", err, errNoLoader)
	}
	if a.Error != "" {
		return a.Loaded, errors.New(a.Error)
	}
	return a.Loaded, nil
}

// loaderGarbagePercent is the loader's GOGC: what it allocates for a request it hands back after that.
const loaderGarbagePercent = 400

// ServeLoader is the loader: it answers requests until there are no more. A signal that is to end the agent may reach all of its group or
// cgroup; the loader ends with the agent, which would tell people otherwise that it is gone. It returns at once then, also while it loads, and the
// process is to end: the next agent looks at what is pinned, and nobody else may pin anything meanwhile.
func ServeLoader(in io.Reader, out io.Writer) error {
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	had, err := capability.Effective()
	if err != nil {
		return err
	}
	// SYS_ADMIN, where it is given, is for the types of the module that tracks connections; SYS_RESOURCE for kernels before 5.11.
	if _, err := capability.Keep(had & capability.Of(unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE)); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(loaderGarbagePercent)
	}
	bpf.LoadsSeldom()
	asked := make(chan loadRequest, 1) // who asks waits for the answer
	go answerLoads(asked, json.NewEncoder(out))
	requests := json.NewDecoder(in)
	for {
		var q loadRequest
		if err := requests.Decode(&q); err != nil {
			return nil // the agent is gone
		}
		asked <- q
	}
}

// answerLoads does what is asked, for as long as the process is there.
func answerLoads(asked <-chan loadRequest, answers *json.Encoder) {
	for {
		debug.FreeOSMemory() // it waits for long
		q := <-asked
		_ = answers.Encode(q.answer()) // nobody reads it where the agent is gone
	}
}
