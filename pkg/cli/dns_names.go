// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strconv"

	wire "github.com/miekg/dns"
	"github.com/spf13/cobra"
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
	cmd := &cobra.Command{
		Use:   "names -f FILE|DIR ...",
		Short: "Print the records of Services' and endpoints' own names",
		Long: `Prints the A, AAAA, CNAME and SRV records of Services' and endpoints' own names,
however many a message could carry.`,
		Example: "  nearlb dns names -f manifests/ --node n1",
		Args:    noArguments,
	}
	f.add(cmd)
	format := addOutputFlag(cmd, formatTable, formatJSON, formatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		names, responder, err := f.read(cmd)
		if err != nil {
			return err
		}
		rows, told := []nameRow{}, map[nameRow]bool{}
		for _, name := range names.Names(f.zones[0]) {
			for _, qtype := range []uint16{wire.TypeA, wire.TypeAAAA, wire.TypeSRV} {
				for _, a := range ask(cmd.Context(), responder, []string{name}, qtype).Answers {
					// What an ExternalName leads to has rows of its own, and its CNAME answers for both families.
					if row := queryRow(a); row.Name == name && !told[row] {
						told[row] = true
						rows = append(rows, row)
					}
				}
			}
		}
		return writeRows(cmd.OutOrStdout(), 0, format.value, nameColumns(), rows)
	}
	return cmd
}

// queryRow is an answer as a row.
func queryRow(a queryAnswer) nameRow {
	return nameRow{Name: a.Name, TTL: a.TTL, Type: a.Type, Data: a.Data, Tier: a.Tier}
}

func nameColumns() []column[nameRow] {
	return []column[nameRow]{
		{heading: "NAME", cell: func(r nameRow) string { return r.Name }},
		{heading: "TTL", right: true, cell: func(r nameRow) string { return strconv.FormatUint(uint64(r.TTL), 10) }},
		{heading: "TYPE", cell: func(r nameRow) string { return r.Type }},
		{heading: "DATA", cell: func(r nameRow) string { return r.Data }},
		{heading: "TIER", cell: func(r nameRow) string { return r.Tier }},
	}
}
