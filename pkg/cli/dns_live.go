// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/dns"
)

// liveNames are the flags of commands that ask the agent where no files are named.
type liveNames struct{ agentFlags }

// asked tells whether the agent is meant. Flags of files are refused then, and those of the agent with files.
func (l *liveNames) asked(cmd *cobra.Command, f *nameFlags) (bool, error) {
	live := len(f.files) == 0
	refused, because := []string{"zone", "pods", "node", "node-zone"}, "goes with --filename: the agent has its own"
	if !live {
		refused, because = []string{"pin-path", "lock-dir"}, "is the agent's, which is not asked with --filename"
	}
	if at := slices.IndexFunc(refused, cmd.Flags().Changed); at >= 0 {
		return false, command.Usagef("--%s %s", refused[at], because)
	}
	return live, nil
}

func (l *liveNames) query(ctx context.Context, name string, qtype uint16, client string) (dns.LookUp, error) {
	if _, err := netip.ParseAddr(client); client != "" && err != nil {
		return dns.LookUp{}, command.Usagef("--client %q: want an IP address, as 10.244.1.7", client)
	}
	return agent.AskNames(ctx, l.lockDir, l.pins.pinPath, name, qtype, client)
}
