// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageWidth is how wide help is, in columns.
const usageWidth = 80

// writeUsage writes what cobra's template does, with flags folded. A template would have the linker keep every method of every type: 4 MB of
// the plugin.
func writeUsage(w io.Writer, c *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:")
	if c.Runnable() {
		b.WriteString("\n  " + c.UseLine())
	}
	if c.HasAvailableSubCommands() {
		b.WriteString("\n  " + c.CommandPath() + " [command]")
	}
	if len(c.Aliases) > 0 {
		b.WriteString("\n\nAliases:\n  " + c.NameAndAliases())
	}
	if c.HasExample() {
		b.WriteString("\n\nExamples:\n" + c.Example)
	}
	listCommands(&b, c)
	if c.HasAvailableLocalFlags() {
		b.WriteString("\n\nFlags:\n" + flagUsages(c.LocalFlags()))
	}
	if c.HasAvailableInheritedFlags() {
		b.WriteString("\n\nGlobal Flags:\n" + flagUsages(c.InheritedFlags()))
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n\nUse \"%s [command] --help\" for more information about a command.", c.CommandPath())
	}
	_, err := fmt.Fprintln(w, b.String())
	return err
}

func flagUsages(flags *pflag.FlagSet) string {
	return strings.TrimRight(flags.FlagUsagesWrapped(usageWidth), " \n")
}

// listCommands lists a command's commands in their groups, those of none last.
func listCommands(b *strings.Builder, c *cobra.Command) {
	if !c.HasAvailableSubCommands() {
		return
	}
	groups := c.Groups()
	switch {
	case len(groups) == 0:
		groups = []*cobra.Group{{Title: "Available Commands:"}}
	case !c.AllChildCommandsHaveGroup():
		groups = append(groups[:len(groups):len(groups)], &cobra.Group{Title: "Additional Commands:"})
	}
	for _, group := range groups {
		b.WriteString("\n\n" + group.Title)
		for _, of := range c.Commands() {
			if of.GroupID == group.ID && (of.IsAvailableCommand() || of.Name() == "help") {
				fmt.Fprintf(b, "\n  %-*s %s", of.NamePadding(), of.Name(), of.Short)
			}
		}
	}
}
