// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/cgroup"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/sockdiag"
	"github.com/nearlb/nearlb/pkg/table"
)

// checkRow is one thing that nearlb wants of this machine.
type checkRow struct {
	Subject string `json:"subject"`
	Result  result `json:"result"`
	Detail  string `json:"detail"` // what was found, or what follows and how to mend it
}

type result string

const (
	good    result = "ok"
	warning result = "warning" // nearlb runs, and not as well as it could
	missing result = "missing" // nearlb cannot run
)

func checkCommand() *cobra.Command {
	var pins pinFlags
	var lockDir string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say what this machine lacks, and what else is in the way",
		Long: `Looks at the kernel, mounts, capabilities and forwarding, for rules of
kube-proxy that would handle the same Services, and at what an agent left under
the pin path. Changes nothing. Ends with 1 when nearlb cannot run here.`,
		Args: command.NoArguments,
	}
	pins.add(cmd.Flags())
	addLockDir(cmd.Flags(), &lockDir)
	output := command.AddOutputFlag(cmd, command.FormatTable, command.FormatWide, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		rows := append(checkMachine(), checkHandover(cmd.Context(), &pins, lockDir)...)
		rows = append(rows, checkPins(pins.pinPath), checkPorts(&pins), checkShortcut(&pins), checkTunnel(&pins), checkAgent(lockDir, pins.pinPath, time.Now()))
		if err := writeCheck(cmd.OutOrStdout(), output.Value, rows); err != nil {
			return err
		}
		for _, row := range rows {
			if row.Result == missing {
				return fmt.Errorf("check this machine: it lacks what nearlb needs: %s", row.Subject)
			}
		}
		return nil
	}
	return cmd
}

func writeCheck(w io.Writer, format string, rows []checkRow) error {
	if width := table.TerminalWidth(w); width > 0 && format == command.FormatTable {
		writeFindings(w, width, rows)
		return nil
	}
	return command.WriteRows(w, table.TerminalWidth(w), format, []table.Column[checkRow]{
		{Heading: "RESULT", Cell: func(r checkRow) string { return string(r.Result) }},
		{Heading: "SUBJECT", Cell: func(r checkRow) string { return r.Subject }},
		{Heading: "DETAIL", Cell: func(r checkRow) string { return r.Detail }},
	}, rows)
}

// writeFindings is the table of a check with details that go on below their own beginning.
func writeFindings(w io.Writer, width int, rows []checkRow) {
	result, subject := len("RESULT"), len("SUBJECT")
	for _, r := range rows {
		result, subject = max(result, utf8.RuneCountInString(string(r.Result))), max(subject, utf8.RuneCountInString(r.Subject))
	}
	for _, r := range append([]checkRow{{Result: "RESULT", Subject: "SUBJECT", Detail: "DETAIL"}}, rows...) {
		table.WriteFolded(w, width, fmt.Sprintf("%-*s  %-*s  ", result, r.Result, subject, r.Subject), table.Printable(r.Detail))
	}
}

// checkMachine looks at this machine as this process sees it: its capabilities, its mounts, its network namespace.
func checkMachine() []checkRow {
	rows := checkKernel(bpf.Probe())
	rows = append(rows, checkCapabilities(), checkCgroup(), checkEnding(sockdiag.Probe))
	return append(rows, checkForwarding()...)
}

func checkKernel(findings []bpf.Finding) []checkRow {
	var name unix.Utsname
	release := "unknown"
	if err := unix.Uname(&name); err == nil {
		release = unix.ByteSliceToString(name.Release[:])
	}
	if len(findings) == 0 {
		return []checkRow{{"kernel", good, "Linux " + release + " has everything"}}
	}
	rows := []checkRow{{"kernel", good, "Linux " + release}}
	for i, f := range findings {
		if i > 0 && findings[0].Fatal && refused(findings[0]) && refused(f) {
			continue // says no more than the first: without permission nothing can be tried
		}
		row := checkRow{Subject: f.Feature, Result: warning, Detail: f.Means}
		if f.Fatal {
			row.Result = missing
		}
		if f.Since != "" {
			row.Detail += " (since Linux " + f.Since + ")"
		}
		if f.Error != "" {
			row.Detail += ": " + f.Error
		}
		rows = append(rows, row)
	}
	return rows
}

// refused says that the kernel did not let us try.
func refused(f bpf.Finding) bool { return strings.Contains(f.Error, unix.EPERM.Error()) }

// wanted are the capabilities that the agent uses: programs, devices and links, tracing helpers of the verifier.
var wanted = [...]struct {
	name string
	bit  uint
}{{"CAP_BPF", unix.CAP_BPF}, {"CAP_NET_ADMIN", unix.CAP_NET_ADMIN}, {"CAP_PERFMON", unix.CAP_PERFMON}}

func checkCapabilities() checkRow {
	row := checkRow{Subject: "capabilities"}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		row.Result, row.Detail = warning, "cannot be read: "+err.Error()
		return row
	}
	effective := uint64(data[0].Effective) | uint64(data[1].Effective)<<32
	var lacks []string
	for _, c := range wanted {
		if effective&(1<<c.bit) == 0 {
			lacks = append(lacks, c.name)
		}
	}
	row.Result, row.Detail = good, "BPF, NET_ADMIN, PERFMON"
	if len(lacks) > 0 {
		row.Result, row.Detail = missing, "run as root, or with "+strings.Join(lacks, ", ")
	}
	return row
}

// checkCgroup looks for the hierarchy whose sockets are served: the node's own clients.
func checkCgroup() checkRow {
	mount, err := cgroup.Find()
	if err != nil {
		return checkRow{"cgroup2", warning, fmt.Sprintf("%s: the node's own clients reach no Service (mount one: mount -t cgroup2 none DIR, and --cgroup DIR)", err)}
	}
	return checkRow{"cgroup2", good, mount.Point}
}

func checkForwarding() []checkRow {
	var rows []checkRow
	for _, family := range []struct {
		name string
		v4   bool
	}{{"IPv4 forwarding", true}, {"IPv6 forwarding", false}} {
		row := checkRow{family.name, good, "on"}
		if err := agent.Forwarding(family.v4); err != nil {
			row.Result, row.Detail = warning, err.Error()
		}
		rows = append(rows, row)
	}
	return rows
}

// checkEnding asks whether the kernel ends the sockets of UDP clients whose backend is gone.
func checkEnding(probe func() error) checkRow {
	if err := probe(); err != nil {
		return checkRow{"end of UDP sockets", warning,
			"connected UDP sockets of the node's own clients go on sending to a backend that is gone (CONFIG_INET_UDP_DIAG, CONFIG_INET_DIAG_DESTROY): " + err.Error()}
	}
	return checkRow{"end of UDP sockets", good, "clients learn that their backend is gone"}
}

// checkPins says whether an agent of this version could use what is pinned.
func checkPins(pinPath string) checkRow {
	tables, err := bpf.OpenMaps(pinPath, true)
	if err == nil {
		err = tables.Close()
	}
	switch {
	case err == nil:
		return checkRow{"pinned tables", good, "under " + pinPath}
	case errors.Is(err, bpf.ErrNoAgent):
		return checkRow{"pinned tables", good, "none yet under " + pinPath}
	case errors.Is(err, bpf.ErrIncompatible):
		return checkRow{"pinned tables", missing, err.Error()}
	}
	return checkRow{"pinned tables", warning, err.Error()}
}

// checkAgent says whether an agent follows changes. None yet is no fault of the machine.
func checkAgent(lockDir, pinPath string, now time.Time) checkRow {
	status, err := agent.ReadStatus(lockDir, pinPath)
	switch {
	case errors.Is(err, agent.ErrNoStatus):
		return checkRow{"agent", good, "none yet for " + pinPath}
	case err != nil:
		return checkRow{"agent", warning, err.Error()}
	case works(status):
		return checkRow{"agent", good, agentText(status, now)}
	}
	return checkRow{"agent", warning, agentText(status, now)}
}
