// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/health"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// Status is what a running agent says of itself, written as JSON to a file that the CLI reads.
type Status struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	State   State     `json:"state"`
	Running bool      `json:"running"` // filled in by ReadStatus: its process exists
	Stale   bool      `json:"stale"`   // filled in by ReadStatus: its process exists and has written nothing for some time
	Started time.Time `json:"started"`
	Written time.Time `json:"written"` // filled in by ReadStatus: when the agent last said that all this is so, every few seconds

	Node    NodeStatus `json:"node"`
	Source  string     `json:"source"`                     // "kubernetes" or "manifests DIR"
	Proxy   string     `json:"serviceProxyName,omitempty"` // label of the Services that alone are served; "": those without
	PinPath string     `json:"pinPath"`
	May     []string   `json:"capabilities"` // of the process, which dropped the others: CAP_NET_ADMIN

	LastSync  time.Time `json:"lastSync"`  // last time that every change was published; zero: never
	LastAudit time.Time `json:"lastAudit"` // zero: never
	Drift     int       `json:"drift"`     // differences that audits found since the start

	Services int              `json:"services"` // published
	Dirty    int              `json:"dirty"`    // waiting to be published
	Failing  []FailingService `json:"failing"`

	Held watch.Held `json:"held"` // what stays in force although the API server suddenly lists it no more

	Ejected []LeftOut `json:"ejected,omitempty"` // backends that do not answer this node and its clients, sorted by id

	Names      *NamesStatus       `json:"names,omitempty"`      // left out: it is not to answer any
	Shortcut   *ShortcutStatus    `json:"shortcut,omitempty"`   // left out: it is never taken
	Tunnel     *TunnelStatus      `json:"tunnel,omitempty"`     // left out: there is none
	Heartbeats *HeartbeatStatus   `json:"heartbeats,omitempty"` // left out: nodes do not ask each other whether they are there
	Growth     Growth             `json:"growth"`               // of the tables
	Devices    []attach.DeviceRow `json:"devices"`
	Checks     []health.Row       `json:"healthChecks"` // health check node ports
	Problems   []lb.Problem       `json:"problems"`     // of objects, sorted
	Listen     map[string]string  `json:"listen"`       // server (health, metrics) -> address
	Trouble    []string           `json:"trouble"`      // of the agent itself: servers that cannot listen, kept table sizes

	here []lb.Problem // those of Problems that are of this node alone
}

// LeftOut is a backend that new connections leave out.
type LeftOut struct {
	Service lb.ServiceName `json:"service"`
	Port    string         `json:"port"` // name of the service port
	Backend netip.AddrPort `json:"backend"`
}

// State is how far the agent got.
type State string

// The states of an agent.
const (
	Starting State = "starting" // objects are not all listed or published, or programs not attached; what earlier agents published serves
	Serving  State = "serving"
	Stopped  State = "stopped" // ended on purpose; what it published goes on serving
)

// NodeStatus is the node as the agent knows it.
type NodeStatus struct {
	Name      string   `json:"name"`
	Zone      string   `json:"zone"`
	Region    string   `json:"region"`
	Addresses []string `json:"addresses"`
	NodePorts []string `json:"nodePortAddresses"` // addresses that answer NodePorts
	Eligible  bool     `json:"eligible"`          // load balancers off the cluster may send traffic here
}

// FailingService is a Service whose last publication failed. What was published before goes on serving.
type FailingService struct {
	Service  lb.ServiceName `json:"service"`
	Error    string         `json:"error"`
	Cause    string         `json:"cause"` // of the error, in a word: table_full, kernel
	Since    time.Time      `json:"since"`
	Attempts int            `json:"attempts"`
}

// statusEvery is how often the file's modification time is renewed if nothing changed. A file three times as old is of an agent
// that is gone or hangs.
const statusEvery = 5 * time.Second

// ErrNoStatus: no agent wrote a status for this pin path.
var ErrNoStatus = errors.New("no agent status")

// StatusPath is the status file of the agent of a pin path.
func StatusPath(lockDir, pinPath string) string {
	return filepath.Join(lockDir, bpf.LockName(lockDir, pinPath)+".status.json")
}

// StatusFiles are the status file of a pin path and what an agent that was killed while it wrote it left beside it.
func StatusFiles(lockDir, pinPath string) []string {
	path := StatusPath(lockDir, pinPath)
	return []string{path, unfinished(path)}
}

// ReadStatus reads what the agent of a pin path last wrote, and whether it still runs. Without any it is ErrNoStatus.
func ReadStatus(lockDir, pinPath string) (Status, error) {
	var s statusFile
	text, written, err := readDated(StatusPath(lockDir, pinPath))
	if errors.Is(err, fs.ErrNotExist) {
		return s.Status, fmt.Errorf("read status of %s: %w (start `nearlb agent`, or name its --pin-path and --lock-dir)", pinPath, ErrNoStatus)
	}
	if err != nil {
		return s.Status, fmt.Errorf("read status: %w", err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s.Status, fmt.Errorf("read status %s: %w", StatusPath(lockDir, pinPath), err)
	}
	now := time.Now()
	s.Written = written
	s.Running = s.State != Stopped && s.alive(now)
	s.Stale = s.Running && s.old(now)
	return s.Status, nil
}

// readDated reads a file and its modification time.
func readDated(path string) ([]byte, time.Time, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	text, err := io.ReadAll(file)
	return text, info.ModTime(), err
}

// statusFile adds what only the reader needs.
type statusFile struct {
	Status
	PIDNamespace string `json:"pidNamespace"` // where PID means something
}

// alive asks for the process where its number means something, and for the file's age elsewhere.
func (s statusFile) alive(now time.Time) bool {
	if own, err := pidNamespace(); err == nil && own == s.PIDNamespace {
		return !errors.Is(unix.Kill(s.PID, 0), unix.ESRCH)
	}
	return !s.old(now)
}

// old: an agent that works would have renewed it, also where the clock was set back since.
func (s statusFile) old(now time.Time) bool { return now.Sub(s.Written).Abs() >= 3*statusEvery }

func pidNamespace() (string, error) { return os.Readlink("/proc/self/ns/pid") }

// text is the content of the file.
func (s Status) text() ([]byte, error) {
	namespace, err := pidNamespace()
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(statusFile{s, namespace}, "", "  ")
	return append(text, '\n'), err
}

// replaceFile replaces a file in one step.
func replaceFile(path string, text []byte) error {
	if err := os.WriteFile(unfinished(path), text, 0o644); err != nil {
		return err
	}
	return os.Rename(unfinished(path), path)
}

// unfinished is the file that takes another's place when it is whole.
func unfinished(path string) string { return path + ".new" }
