// SPDX-License-Identifier: Apache-2.0

//go:build image

package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// demoExample is empty in a program for the image: see notInImage.
const demoExample = ""

func demoCommand() *cobra.Command { return notInImage("demo") }

func benchCommand() *cobra.Command { return notInImage("bench") }

// notInImage stands for a command that a program built with the tag "image" leaves out, with the packages that it alone uses.
// It is not listed, and whoever calls it is told where the command is.
func notInImage(name string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("%s is not in the image: run the program that `make build` builds", name)
		},
	}
}
