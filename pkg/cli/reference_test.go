// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const referenceHead = `# Reference

Made by ` + "`make reference`" + ` from the commands themselves and from the table of metrics in manifests/monitoring: a test compares them.

Exit status: 0 done; 1 the request was understood and failed, or what was asked for is not there; 2 bad usage or bad input. Errors are one line on standard error. ` + "`kubectl nearlb`" + ` has
the read commands of all nodes at once, and some flags of its own: [kubectl.md](kubectl.md).

`

// docs/reference.md is the commands with their flags, and the metrics. NEARLB_UPDATE=1 writes it.
func TestThePageOfReferenceIsTheCommandsAndTheMetrics(t *testing.T) {
	var page strings.Builder
	page.WriteString(referenceHead)
	root := Root()
	for _, group := range root.Groups() {
		fmt.Fprintf(&page, "**%s**", group.Title)
		for _, cmd := range root.Commands() {
			if cmd.GroupID == group.ID {
				fmt.Fprintf(&page, " [`%s`](#nearlb-%s)", cmd.Name(), cmd.Name())
			}
		}
		page.WriteString("\n\n")
	}
	page.WriteString("**Seen from outside:** [metrics](#metrics)\n\n")
	refer(&page, root)
	page.WriteString(metricsSection(t))
	goldenOf(t, "../../../docs/reference.md", 0, []byte(page.String())) // make reference writes it
}

// refer writes a section for each command that does something itself.
func refer(page *strings.Builder, cmd *cobra.Command) {
	if cmd.Hidden || cmd.Name() == "completion" || cmd.Name() == "help" {
		return
	}
	if cmd.HasParent() && cmd.Runnable() {
		fmt.Fprintf(page, "## %s\n\n%s.\n\n", cmd.CommandPath(), strings.TrimSuffix(cmd.Short, "."))
		if cmd.Long != "" {
			fmt.Fprintf(page, "```text\n%s\n```\n\n", strings.TrimSpace(cmd.Long))
		}
		fmt.Fprintf(page, "    %s\n\n", cmd.UseLine())
		referFlags(page, cmd)
	}
	for _, child := range cmd.Commands() {
		refer(page, child)
	}
}

func referFlags(page *strings.Builder, cmd *cobra.Command) {
	rows := 0
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden || flag.Name == "help" {
			return
		}
		if rows++; rows == 1 {
			page.WriteString("| flag | default | |\n|---|---|---|\n")
		}
		value, usage := pflag.UnquoteUsage(flag)
		name := strings.TrimSpace("--" + flag.Name + " " + value)
		if flag.Shorthand != "" {
			name = "-" + flag.Shorthand + ", " + name
		}
		fmt.Fprintf(page, "| `%s` | %s | %s |\n", cell(name), preset(flag), cell(usage))
	})
	if rows > 0 {
		page.WriteString("\n")
	}
}

// preset is a flag's default, where its own words do not say it.
func preset(flag *pflag.Flag) string {
	switch flag.DefValue {
	case "", "[]", "false", "0", "0s", "invalid IP":
		return ""
	}
	return "`" + cell(flag.DefValue) + "`"
}

func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }

// metricsSection is that of manifests/monitoring, which tests/monitoring holds to what agents tell.
func metricsSection(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../manifests/monitoring/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Metrics\n")
	if !found {
		t.Fatal("manifests/monitoring/README.md has no section of metrics")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	section = regexp.MustCompile(`\]\(([^)#:]+)\)`).ReplaceAllString(section, "](../manifests/monitoring/$1)")
	return "## Metrics\n" + cmp.Or(strings.TrimRight(section, "\n"), "\n") + "\n"
}
