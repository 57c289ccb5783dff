// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/explain"
	"github.com/nearlb/nearlb/pkg/lb"

	"github.com/nearlb/nearlb/pkg/table"
)

func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain [WORD]",
		Short: "Say what a verdict, reason or state is, and what to do about it",
		Long: `Explains the words that the other commands print: verdicts of packets (with
their class or without, as drop-no-route or no-route), reasons of rules and
endpoints, states, causes and changes. Without a word it lists all of them.`,
		Example: "  nearlb explain no-local-endpoints\n  nearlb explain draining\n  nearlb explain -o json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return command.Usagef("%d arguments: want one word", len(args))
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return spellings(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	output := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatJSONL, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		words := explain.Words()
		if len(args) > 0 {
			if words = explain.Find(args[0]); len(words) == 0 {
				if near := lb.Nearest(args[0], spellings()); near != "" {
					return fmt.Errorf("there is no word %q: did you mean %s?", args[0], near)
				}
				return fmt.Errorf("there is no word %q: nearlb explain lists all of them", args[0])
			}
		}
		for i := range words {
			words[i] = words[i].Anywhere()
		}
		out := cmd.OutOrStdout()
		if output.Value != command.FormatTable {
			return command.WriteRows(out, 0, output.Value, nil, words)
		}
		width := table.TerminalWidth(out)
		if len(args) == 0 {
			writeVocabulary(out, width, words)
			return nil
		}
		for i, w := range words {
			if i > 0 {
				fmt.Fprintln(out)
			}
			fmt.Fprintf(out, "%s (%s)\n", w.Word, w.Kind)
			table.WriteFolded(out, width, "  ", sentence(w.Text))
			if w.Do != "" {
				table.WriteFolded(out, width, "  ", ended("What to do: "+w.Do))
			}
		}
		return nil
	}
	return cmd
}

// sentence begins a text that stands alone with a capital letter, and ends it.
func sentence(text string) string { return ended(strings.ToUpper(text[:1]) + text[1:]) }

// ended ends a sentence that is no question.
func ended(text string) string {
	if strings.HasSuffix(text, "?") {
		return text
	}
	return text + "."
}

// spellings are all words, verdicts with their class and without.
func spellings() (all []string) {
	for _, w := range explain.Words() {
		all = append(all, w.Word)
		if w.Kind == explain.Verdict {
			_, reason, _ := strings.Cut(w.Word, "-")
			all = append(all, reason)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// writeVocabulary lists the words of each kind.
func writeVocabulary(w io.Writer, width int, words []explain.Word) {
	var kinds []explain.Kind
	of := map[explain.Kind][]string{}
	for _, word := range words {
		if of[word.Kind] == nil {
			kinds = append(kinds, word.Kind)
		}
		of[word.Kind] = append(of[word.Kind], word.Word)
	}
	if width == 0 {
		width = 80
	}
	for _, kind := range kinds {
		table.WriteFolded(w, width, fmt.Sprintf("%-13s  ", kind), strings.Join(of[kind], ", "))
	}
}
