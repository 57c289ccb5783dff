// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/table"
)

func devicesCommand() *cobra.Command {
	var live agentFlags
	var again watchFlags
	cmd := &cobra.Command{
		Use:     "devices",
		Short:   "List the devices, and the cgroup, that have our programs",
		Example: "  nearlb devices\n  nearlb devices -o json",
		Args:    command.NoArguments,
	}
	live.add(cmd.Flags())
	output := command.AddOutputFlag(cmd, command.FormatTable, command.FormatWide, command.FormatJSON, command.FormatJSONL, command.FormatYAML)
	again.add(cmd)
	show := shown[attach.DeviceRow]{columns: deviceColumns(), output: output,
		empty: "No devices: no program of ours is attached in this network namespace."}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return again.run(cmd.Context(), cmd.OutOrStdout(), func(w io.Writer, width int) error {
			status, _ := agent.ReadStatus(live.lockDir, live.pins.pinPath) // without one the rows have no node
			show.stamp = stampNow(status)
			rows, err := attach.List(bpf.LinkDirectory(live.pins.pinPath))
			if err != nil {
				return err
			}
			return show.all(w, width, rows)
		})
	}
	return cmd
}

func deviceColumns() []table.Column[attach.DeviceRow] {
	return []table.Column[attach.DeviceRow]{
		{Heading: "DEVICE", Cell: func(r attach.DeviceRow) string { return r.Device }},
		{Heading: "KIND", Cell: func(r attach.DeviceRow) string { return r.Kind }},
		{Heading: "PROGRAM", Cell: func(r attach.DeviceRow) string { return r.Program }},
		{Heading: "HOOK", Cell: func(r attach.DeviceRow) string { return r.Hook }},
		{Heading: "METHOD", Cell: func(r attach.DeviceRow) string { return string(r.Method) }},
		{Heading: "INDEX", Wide: true, Right: true, Cell: func(r attach.DeviceRow) string { return orNothing(r.Ifindex) }},
		{Heading: "ID", Wide: true, Right: true, Cell: func(r attach.DeviceRow) string { return count(uint64(r.ID)) }},
		{Heading: "TAG", Wide: true, Cell: func(r attach.DeviceRow) string { return r.Tag }},
		{Heading: "BEFORE OURS", Wide: true, Cell: func(r attach.DeviceRow) string {
			return strings.Trim(strings.ReplaceAll(fmt.Sprint(r.Others), " ", ","), "[]")
		}},
	}
}
