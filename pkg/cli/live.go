// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"iter"

	"github.com/spf13/pflag"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/maps"
)

// pinFlags say where an agent's tables are.
type pinFlags struct {
	pinPath string
}

func (f *pinFlags) add(flags *pflag.FlagSet) {
	f.pinPath = bpf.DefaultPinPath
	flags.Var((*directoryFlag)(&f.pinPath), "pin-path", "`directory` of the agent's pinned tables")
}

// directoryFlag is a directory, which an empty variable of a script is not.
type directoryFlag string

func (f *directoryFlag) Type() string   { return "directory" }
func (f *directoryFlag) String() string { return string(*f) }

func (f *directoryFlag) Set(text string) error {
	if text == "" {
		return errors.New("want a directory")
	}
	*f = directoryFlag(text)
	return nil
}

// read opens the live tables read-only for as long as use runs. No agent need run; one must have run.
func (f *pinFlags) read(use func(*maps.Reader) error) error {
	tables, err := bpf.OpenMaps(f.pinPath, true)
	if err != nil {
		return err
	}
	reader, err := maps.NewReader(tables)
	if err == nil {
		err = errors.Join(use(reader), reader.Close())
	}
	return errors.Join(err, tables.Close())
}

// collect takes the rows that keep lets through.
func collect[R any](rows iter.Seq2[R, error], keep func(R) bool) ([]R, error) {
	all := []R{}
	for row, err := range rows {
		if err != nil {
			return nil, err
		}
		if keep(row) {
			all = append(all, row)
		}
	}
	return all, nil
}
