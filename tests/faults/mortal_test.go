// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/cilium/ebpf"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lab"
	tables "github.com/nearlb/nearlb/pkg/maps"
)

// mortalOptions in the environment make a mortal agent of this test binary.
const mortalOptions = "NEARLB_TEST_MORTAL_OPTIONS"

// mortal is an agent that ends by SIGKILL in the middle of its work: after as many writes to the tables as the file Doom says,
// counted from the file's coming. The file goes as its count begins, and Doom.done comes as it ends.
type mortal struct {
	Options agent.Options
	Doom    string
	Reload  bool // load the programs anew, which takes the verifier a second; else take over those that are pinned
	Lacking bool // the kernel has no programs of sockets
}

func mortalMain(text string) int {
	var m mortal
	err := json.Unmarshal([]byte(text), &m)
	if err == nil {
		m.Options.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
		m.Options.Wrote, m.Options.Reload = m.wrote(), m.Reload
		switch {
		case m.Lacking:
			m.Options.Load = withoutSockets
		case !m.Reload:
			m.Options.Load = pinnedObjects
		}
		err = agent.Run(context.Background(), m.Options)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// wrote counts.
func (m *mortal) wrote() func() {
	var one sync.Mutex // the tables and what every program is told are written by two goroutines
	left := 0
	return func() {
		one.Lock()
		defer one.Unlock()
		if left == 0 {
			text, err := os.ReadFile(m.Doom)
			if errors.Is(err, fs.ErrNotExist) {
				return
			}
			if left, err = strconv.Atoi(string(text)); err != nil {
				panic(err)
			}
			_ = os.Remove(m.Doom)
		}
		if left--; left == 0 {
			_ = os.WriteFile(m.Doom+".done", nil, 0o600)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // no further write
		}
	}
}

// pinnedObjects stands for bpf.Load with a bpffs that has an earlier load's programs.
func pinnedObjects(o bpf.Options) (*bpf.Objects, error) {
	pinned, err := bpf.OpenMaps(o.PinPath, false)
	if err != nil {
		return nil, err
	}
	loads, err := filepath.Glob(filepath.Join(filepath.Dir(bpf.LinkDirectory(o.PinPath)), "programs", "*"))
	if err != nil || len(loads) == 0 {
		return nil, fmt.Errorf("find pinned programs: %w", err)
	}
	last := loads[len(loads)-1]
	files, err := os.ReadDir(last)
	if err != nil {
		return nil, err
	}
	found := map[string]*ebpf.Program{}
	for _, f := range files {
		if p, err := ebpf.LoadPinnedProgram(filepath.Join(last, f.Name()), nil); err == nil { // else a table of tail calls
			found[f.Name()] = p
		}
	}
	objects := &bpf.Objects{}
	objects.NearlbMaps = *pinned
	fields := reflect.ValueOf(&objects.NearlbPrograms).Elem()
	for i := range fields.NumField() {
		name := fields.Type().Field(i).Tag.Get("ebpf")
		if p := found[name]; p != nil {
			fields.Field(i).Set(reflect.ValueOf(p))
		} else if strings.HasPrefix(name, "sock_connect") || slices.Contains([]string{"from_pod", "to_pod", "from_net", "to_net"}, name) { // others may be left out
			return nil, fmt.Errorf("no program %s is pinned", name)
		}
	}
	return objects, nil
}

// withoutSockets stands for bpf.Load on a kernel without the cgroups' hooks.
func withoutSockets(o bpf.Options) (*bpf.Objects, error) {
	o.NoSocketHooks = true
	objects, err := bpf.Load(o)
	if err == nil {
		objects.SocketHooks = errors.New("no such hook")
	}
	return objects, err
}

// mortal starts one on a node.
func (c *cluster) mortal(n *lab.Node, doom string, reload bool) *running {
	c.t.Helper()
	return c.start(n, mortal{Doom: doom, Reload: reload})
}

func (c *cluster) start(n *lab.Node, m mortal) *running {
	c.t.Helper()
	o := agent.DefaultOptions()
	o.NodeName, o.Manifests, o.PinPath, o.LockDir, o.Cgroup = n.Name, c.Manifests.Dir, n.PinPath(), c.LockDir(), n.Cgroup()
	o.Sizes = bpf.Sizes{Slots: 1 << 16, FlowSets: 1 << 13}
	o.HealthAddress, o.MetricsAddress = "", ""
	o.Debounce, o.ReclaimEvery = 0, reclaimEvery
	o.SNATPorts = tables.PortRange{First: 40000, Last: 65535} // enough for what a client asks in the minutes that a port is taken
	c.must(n.Sysctl("ipv4/ip_local_port_range=10000 29999"))
	m.Options = o
	text, err := json.Marshal(m)
	c.must(err)
	p, err := n.Start("agent", []string{"/proc/self/exe"}, mortalOptions+"="+string(text))
	c.must(err)
	return &running{p, c, n}
}
