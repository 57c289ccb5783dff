// SPDX-License-Identifier: Apache-2.0

package command

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// ModeFlag takes one of a few modes, checked as it is set.
type ModeFlag[M ~string] struct {
	Mode *M // where the mode goes
	All  []M
}

// Type is pflag.Value's, as String and Set are.
func (f ModeFlag[M]) Type() string   { return "mode" }
func (f ModeFlag[M]) String() string { return string(*f.Mode) }

// Words are the modes, for the shell.
func (f ModeFlag[M]) Words() (all []string) {
	for _, mode := range f.All {
		all = append(all, string(mode))
	}
	return all
}

// Set takes a mode in small or capital letters.
func (f ModeFlag[M]) Set(text string) error {
	mode := M(strings.ToLower(text))
	if !slices.Contains(f.All, mode) {
		words := f.Words()
		last := len(words) - 1
		return Usagef("want %s or %s", strings.Join(words[:last], ", "), words[last])
	}
	*f.Mode = mode
	return nil
}

// Complete gives a flag's values to the shell.
func Complete(cmd *cobra.Command, flag string, values func() []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return values(), cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // a program error: no such flag
	}
}

// NoArguments is for commands that take flags alone.
func NoArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef("unexpected argument %q: %s takes flags only", args[0], cmd.CommandPath())
	}
	return nil
}

// List is s, or an empty list: JSON has no null for it.
func List[E any](s []E) []E {
	if s == nil {
		return []E{}
	}
	return s
}
