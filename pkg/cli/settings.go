// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"maps"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
)

// fromDirectory sets flags that neither the command line nor the environment sets from files of their names, and says what it read. A file
// that is no flag is told of: the agent starts without it.
func fromDirectory(flags *pflag.FlagSet, dir string, warn func(string)) (agent.Settings, error) {
	settings, err := agent.ReadSettings(dir)
	if err != nil {
		return settings, command.UsageError{Err: err}
	}
	var names []string
	flags.VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	for _, name := range slices.Sorted(maps.Keys(settings.Values)) {
		flag := flags.Lookup(name)
		switch {
		case flag == nil || name == "help" || name == configDirFlag:
			warn(filepath.Join(dir, name) + ": " + unknownWord("flag", name, names).Error())
		case flag.Changed:
		default:
			if err := flags.Set(name, settings.Values[name]); err != nil {
				return settings, command.Usagef("%s: %q: %w", filepath.Join(dir, name), settings.Values[name], err)
			}
		}
	}
	return settings, nil
}

// configDirFlag names the directory itself.
const configDirFlag = "config-dir"
