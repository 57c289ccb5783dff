// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/table"
)

// nameRow is one record of `nearlb dns names`.
type nameRow struct {
	Name string `json:"name"`
	TTL  uint32 `json:"ttl"`
	Type string `json:"type"`
	Data string `json:"data"`
	Tier string `json:"tier,omitempty"`
}

func dnsNamesCommand() *cobra.Command {
	var f nameFlags
	var live liveNames
	cmd := &cobra.Command{
		Use:   "names [-f FILE|DIR ...]",
		Short: "Print the records of Services' and endpoints' own names",
		Long: `Prints the A, AAAA, CNAME and SRV records of Services' and endpoints' own names,
however many a message could carry: those that the agent of this node answers
with, or with -f those of objects from files.`,
		Example: `  nearlb dns names
  nearlb dns names -f manifests/ --node n1`,
		Args: command.NoArguments,
	}
	f.add(cmd)
	live.add(cmd.Flags())
	format := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		var records []dns.Record
		if isLive, refused := live.asked(cmd, &f); refused != nil {
			return refused
		} else if isLive {
			records, err = agent.ListNames(cmd.Context(), live.lockDir, live.pins.pinPath)
		} else if _, responder, refused := f.read(cmd); refused != nil {
			return refused
		} else {
			records = slices.Collect(responder.Records(cmd.Context()))
		}
		if err != nil {
			return err
		}
		rows := []nameRow{}
		for _, r := range records {
			rows = append(rows, nameRow{Name: r.Name, TTL: r.TTL, Type: r.Type, Data: r.Data, Tier: r.Tier})
		}
		return command.WriteRows(cmd.OutOrStdout(), 0, format.Value, nameColumns(), rows)
	}
	return cmd
}

func nameColumns() []table.Column[nameRow] {
	return []table.Column[nameRow]{
		{Heading: "NAME", Cell: func(r nameRow) string { return r.Name }},
		{Heading: "TTL", Right: true, Cell: func(r nameRow) string { return strconv.FormatUint(uint64(r.TTL), 10) }},
		{Heading: "TYPE", Cell: func(r nameRow) string { return r.Type }},
		{Heading: "DATA", Cell: func(r nameRow) string { return r.Data }},
		{Heading: "TIER", Cell: func(r nameRow) string { return r.Tier }},
	}
}
