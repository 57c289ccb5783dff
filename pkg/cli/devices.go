// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
)

func devicesCommand() *cobra.Command {
	var pins pinFlags
	var again watchFlags
	cmd := &cobra.Command{
		Use:     "devices",
		Short:   "List the devices, and the cgroup, that have our programs",
		Example: "  nearlb devices\n  nearlb devices -o json",
		Args:    noArguments,
	}
	pins.add(cmd.Flags())
	output := addOutputFlag(cmd, formatTable, formatWide, formatJSON, formatJSONL, formatYAML)
	again.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return again.run(cmd.Context(), cmd.OutOrStdout(), func(w io.Writer, width int) error {
			rows, err := attach.List(bpf.LinkDirectory(pins.pinPath))
			if err != nil {
				return err
			}
			if len(rows) == 0 && (output.value == formatTable || output.value == formatWide) {
				_, err := fmt.Fprintln(w, "No devices: no program of ours is attached in this network namespace.")
				return err
			}
			return writeRows(w, width, output.value, deviceColumns(), rows)
		})
	}
	return cmd
}

func deviceColumns() []column[attach.DeviceRow] {
	return []column[attach.DeviceRow]{
		{heading: "DEVICE", cell: func(r attach.DeviceRow) string { return r.Device }},
		{heading: "KIND", cell: func(r attach.DeviceRow) string { return r.Kind }},
		{heading: "PROGRAM", cell: func(r attach.DeviceRow) string { return r.Program }},
		{heading: "HOOK", cell: func(r attach.DeviceRow) string { return r.Hook }},
		{heading: "METHOD", cell: func(r attach.DeviceRow) string { return string(r.Method) }},
		{heading: "INDEX", wide: true, right: true, cell: func(r attach.DeviceRow) string { return orNothing(r.Ifindex) }},
		{heading: "ID", wide: true, right: true, cell: func(r attach.DeviceRow) string { return count(uint64(r.ID)) }},
		{heading: "TAG", wide: true, cell: func(r attach.DeviceRow) string { return r.Tag }},
		{heading: "BEFORE OURS", wide: true, cell: func(r attach.DeviceRow) string {
			return strings.Trim(strings.ReplaceAll(fmt.Sprint(r.Others), " ", ","), "[]")
		}},
	}
}
