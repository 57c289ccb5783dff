// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line: it turns flags into options, calls the package that does the work, and prints rows as
// tables, JSON or YAML. Exit status and machine-readable output are a contract.
package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/plan"
)

// Main runs the command line args (without the program's name) and returns the exit status.
func Main(args []string) int {
	return run(context.Background(), args, os.Stdin, os.Stdout, os.Stderr)
}

// untilSignal is for commands that have something to end in order: interrupt and terminate end the context. A second signal
// ends the process, as the first does to all other commands.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	return command.Run(ctx, Root(), args, in, out, errOut)
}

// Root is the command tree, new at each call: nothing is shared between two of them.
func Root() *cobra.Command {
	root := &cobra.Command{
		Use:   "nearlb",
		Short: "Kubernetes Service load balancer in eBPF: nearest backend first",
		Long: strings.TrimSpace(`
nearlb sends each connection to the nearest ready backend of its Service: same
node, same zone, then the cluster. One agent per node writes BPF maps; the other
commands read and explain them. --pin-path, --lock-dir, --output, --no-headers
and --interval of those may come from the environment: NEARLB_PIN_PATH ...`),
		Example: demoExample + `  nearlb plan -f objects.yaml --node n1    what a node would do, and why
  nearlb services                          what the live kernel does`,
		Version: versionText(),
		Args:    noSuchCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.Prepare(root)
	root.SetVersionTemplate("nearlb {{.Version}}\n")
	root.AddGroup(&cobra.Group{ID: groupRun, Title: "Run:"}, &cobra.Group{ID: groupRead, Title: "Read the live kernel:"},
		&cobra.Group{ID: groupExplain, Title: "Explain and measure:"})
	root.AddCommand(commands()...)
	guardBuiltins(root)
	return root
}

// The groups of `nearlb --help`.
const (
	groupRun     = "run"
	groupRead    = "read"
	groupExplain = "explain"
)

func commands() []*cobra.Command {
	all := []*cobra.Command{versionCommand(), loaderCmd()}
	for _, group := range []struct {
		id       string
		commands []*cobra.Command
	}{
		{groupRun, []*cobra.Command{agentCommand(agent.Run), demoCommand(), mountCommand(), handoverCommand(), cleanupCommand(), dnsCommand()}},
		{groupRead, []*cobra.Command{topCommand(), uiCommand(), servicesCommand(), backendsCommand(), flowsCommand(), affinityCommand(),
			zonesCommand(), verdictsCommand(), dropsCommand(), changesCommand(), devicesCommand(), statusCommand()}},
		{groupExplain, []*cobra.Command{checkCommand(), whyCommand(), explainCommand(), plan.Command(), traceCommand(), benchCommand()}},
	} {
		for _, cmd := range group.commands {
			cmd.GroupID = group.id
			if group.id != groupRun {
				for _, cmd := range append(cmd.Commands(), cmd) { // cobra's children inherit none
					if cmd.PreRunE == nil {
						cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
							return command.FromEnvironment(cmd.Flags(), command.ReadFlags...)
						}
					}
				}
			}
			all = append(all, cmd)
		}
	}
	return all
}

// noSuchCommand refuses the words that name no command.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := "see " + cmd.CommandPath() + " --help"
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return command.Usagef("unknown command %q of %s: %s", args[0], cmd.CommandPath(), hint)
}

// guardBuiltins makes cobra's own commands refuse unknown words too: left alone they print help and exit with 0.
func guardBuiltins(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(help *cobra.Command, args []string) error {
				if found, rest, err := root.Find(args); err != nil || found == nil || len(rest) > 0 {
					return command.Usagef("unknown command %q: see nearlb --help", strings.Join(args, " "))
				}
				return nil
			}
		case "completion":
			cmd.Args = noSuchCommand
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			for _, shell := range cmd.Commands() {
				shell.Args = command.NoArguments
			}
		}
	}
}
