// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/command"
)

func mountCommand() *cobra.Command {
	var closeWait time.Duration
	cmd := &cobra.Command{
		Use:   "mount",
		Short: "Mount a bpffs on /sys/fs/bpf where there is none",
		Long: `Does once, with privilege, what an agent without it cannot: the DaemonSet's
init container. In kube-proxy's place it sets as well how long the host's
connection tracking keeps a connection of which one side is closed, as
kube-proxy does: nearlb's own connections are not in it, but those are that
a CNI masquerades.`,
		Args: command.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			mounted, err := bpf.Mount()
			if err == nil && mounted {
				fmt.Fprintln(cmd.OutOrStdout(), "mounted a bpffs on /sys/fs/bpf")
			}
			return errors.Join(err, extendCloseWait(cmd.OutOrStdout(), closeWaitFile, closeWait))
		},
	}
	cmd.Flags().DurationVar(&closeWait, "conntrack-tcp-timeout-close-wait", 0, "least time that connection tracking keeps half-closed connections; 0: as it is")
	return cmd
}

// closeWaitFile has the setting, in seconds. It is not there as long as the kernel has no connection tracking.
const closeWaitFile = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"

// extendCloseWait makes the setting this long, if it is shorter.
func extendCloseWait(out io.Writer, file string, least time.Duration) error {
	if least <= 0 {
		return nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(out, "this kernel tracks no connections: no time to set for half-closed ones")
		return nil
	}
	if err != nil {
		return err
	}
	is, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if wanted := int(least.Seconds()); is < wanted {
		if err := os.WriteFile(file, fmt.Appendln(nil, wanted), 0o644); err != nil {
			return fmt.Errorf("set time for half-closed connections: %w", err)
		}
		fmt.Fprintf(out, "connection tracking keeps half-closed connections for %s, %s before\n", least, time.Duration(is)*time.Second)
	}
	return nil
}
