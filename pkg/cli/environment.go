// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// fromEnvironment sets flags that the command line does not from NEARLB_<FLAG>. A value that the flag refuses is bad usage.
// An empty variable counts as unset.
func fromEnvironment(flags *pflag.FlagSet) error {
	var bad error
	flags.VisitAll(func(flag *pflag.Flag) {
		name := variable(flag.Name)
		value := os.Getenv(name)
		if flag.Changed || value == "" || flag.Name == "help" || bad != nil {
			return
		}
		if err := flags.Set(flag.Name, value); err != nil {
			bad = usagef("environment %s=%q: %w", name, value, err)
		}
	})
	return bad
}

// variable is the environment variable of a flag: NEARLB_NODE_NAME of --node-name.
func variable(flag string) string {
	return "NEARLB_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
