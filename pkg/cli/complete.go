// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/table"
)

// liveServices are the names of the Services in the kernel, with and without their ports; none when they cannot be read.
func liveServices(pins *pinFlags) []string {
	var names []string
	pins.read(func(reader *maps.Reader) error {
		for row, err := range reader.Frontends() {
			if err != nil {
				return err
			}
			names = append(names, row.Service, table.WithPort(row.Service, row.Port))
		}
		return nil
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// liveNamespaces are those of the Services in the kernel.
func liveNamespaces(pins *pinFlags) []string {
	names := liveServices(pins)
	for i, name := range names {
		names[i], _, _ = strings.Cut(name, "/")
	}
	return slices.Compact(names)
}

// liveNodes are the names of the nodes that have backends.
func liveNodes(pins *pinFlags) []string {
	var names []string
	pins.read(func(reader *maps.Reader) error {
		for row, err := range reader.Backends() {
			if err != nil {
				return err
			}
			if row.Node != "" {
				names = append(names, row.Node)
			}
		}
		return nil
	})
	slices.Sort(names)
	return slices.Compact(names)
}
