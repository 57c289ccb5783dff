// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nearlb/nearlb/pkg/agent"
)

// readFlags are those that commands which read take from the environment: where the agent is, and how rows look. Which rows there are
// is asked for on the command line alone: the agent's own variables in a pod (NEARLB_ZONE, NEARLB_NODE_NAME) must not narrow an answer.
var readFlags = []string{"pin-path", "lock-dir", "output", "no-headers", "interval"}

// fromEnvironment sets flags, of all or of those that are named, that the command line does not from NEARLB_<FLAG>. A value that the
// flag refuses is bad usage, but an output format that this command has not, and others have: it keeps its own. An empty variable counts
// as unset.
func fromEnvironment(flags *pflag.FlagSet, only ...string) error {
	var bad error
	flags.VisitAll(func(flag *pflag.Flag) {
		name := variable(flag.Name)
		value := os.Getenv(name)
		if flag.Changed || value == "" || flag.Name == "help" || bad != nil || len(only) > 0 && !slices.Contains(only, flag.Name) {
			return
		}
		if output, is := flag.Value.(*outputFlag); is && len(only) > 0 && output.othersHave(value) {
			return
		}
		if err := flags.Set(flag.Name, value); err != nil {
			bad = usagef("environment %s=%q: %w", name, value, err)
		}
		if len(only) > 0 {
			flag.Changed = false // it stands back where the command line asks for what excludes it
		}
	})
	return bad
}

// fromDirectory sets flags that neither the command line nor the environment sets from files of their names, and says what it read. A file
// that is no flag is told of: the agent starts without it.
func fromDirectory(flags *pflag.FlagSet, dir string, warn func(string)) (agent.Settings, error) {
	settings, err := agent.ReadSettings(dir)
	if err != nil {
		return settings, usageError{err}
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
				return settings, usagef("%s: %q: %w", filepath.Join(dir, name), settings.Values[name], err)
			}
		}
	}
	return settings, nil
}

// configDirFlag names the directory itself.
const configDirFlag = "config-dir"

// variable is the environment variable of a flag: NEARLB_NODE_NAME of --node-name.
func variable(flag string) string {
	return "NEARLB_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
