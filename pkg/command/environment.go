// SPDX-License-Identifier: Apache-2.0

package command

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// ReadFlags are those that commands which read take from the environment: where the agent is, and how rows look. Which rows there are
// is asked for on the command line alone: the agent's own variables in a pod (NEARLB_ZONE, NEARLB_NODE_NAME) must not narrow an answer.
var ReadFlags = []string{"pin-path", "lock-dir", "output", "no-headers", "interval"}

// FromEnvironment sets flags, of all or of those that are named, that the command line does not from NEARLB_<FLAG>. A value that the
// flag refuses is bad usage, but an output format that this command has not, and others have: it keeps its own. An empty variable counts
// as unset.
func FromEnvironment(flags *pflag.FlagSet, only ...string) error {
	var bad error
	flags.VisitAll(func(flag *pflag.Flag) {
		name := Variable(flag.Name)
		value := os.Getenv(name)
		if flag.Changed || value == "" || flag.Name == "help" || bad != nil || len(only) > 0 && !slices.Contains(only, flag.Name) {
			return
		}
		if output, is := flag.Value.(*OutputFlag); is && len(only) > 0 && output.othersHave(value) {
			return
		}
		if err := flags.Set(flag.Name, value); err != nil {
			bad = Usagef("environment %s=%q: %w", name, value, plainly(err))
		}
		if len(only) > 0 {
			flag.Changed = false // it stands back where the command line asks for what excludes it
		}
	})
	return bad
}

// Variable is the environment variable of a flag: NEARLB_NODE_NAME of --node-name.
func Variable(flag string) string {
	return "NEARLB_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
