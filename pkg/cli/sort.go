// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nearlb/nearlb/pkg/command"
)

// sortFlag is --sort-by: a field of the rows' JSON, as idleSeconds or internal.reason; kubectl's .idleSeconds and {.idleSeconds} are the
// same. With - before it the order is reversed.
type sortFlag struct {
	text  string
	index []int // of the field in the row's type, as of reflect.Value.FieldByIndex
}

func (f *sortFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.text, "sort-by", "", "order by this `FIELD` of -o json; -FIELD: the largest first")
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "sort" {
			name = "sort-by"
		}
		return pflag.NormalizedName(name)
	})
}

func (f *sortFlag) given() bool { return f.text != "" }

// of finds the field in a row.
func (f *sortFlag) of(row any) error {
	if !f.given() {
		return nil
	}
	name := strings.TrimPrefix(f.text, "-")
	name = strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(name, "{"), "}"), ".")
	fields := sortable(reflect.TypeOf(row), "", nil)
	f.index = fields[name]
	if f.index == nil {
		names := make([]string, 0, len(fields))
		for name := range fields {
			names = append(names, name)
		}
		slices.Sort(names)
		return command.Usagef("--sort-by: %w", unknownWord("field", name, names))
	}
	return nil
}

var addrType = reflect.TypeFor[netip.Addr]()

// sortable are the fields of a type that have an order, by the names that JSON has for them.
func sortable(of reflect.Type, prefix string, index []int) map[string][]int {
	all := map[string][]int{}
	for i := range of.NumField() {
		field := of.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		at := append(slices.Clone(index), i)
		if field.Anonymous && name == "" {
			maps.Copy(all, sortable(field.Type, prefix, at)) // JSON has its fields here
		}
		if name == "" || name == "-" {
			continue
		}
		of := field.Type
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		switch kind := of.Kind(); {
		case of == addrType, kind == reflect.String, kind == reflect.Bool, of.ConvertibleTo(reflect.TypeFor[float64]()):
			all[prefix+name] = at
		case field.Type.Kind() == reflect.Struct:
			for inner, path := range sortable(of, prefix+name+".", at) {
				all[inner] = path
			}
		}
	}
	return all
}

// sortRows puts rows in the order that was asked for, equal ones as they are.
func sortRows[R any](rows []R, f *sortFlag) {
	if f.index == nil {
		return
	}
	sign := 1
	if strings.HasPrefix(f.text, "-") {
		sign = -1
	}
	slices.SortStableFunc(rows, func(a, b R) int {
		return sign * compareValues(reflect.ValueOf(&a).Elem().FieldByIndex(f.index), reflect.ValueOf(&b).Elem().FieldByIndex(f.index))
	})
}

func compareValues(a, b reflect.Value) int {
	if a.Kind() == reflect.Pointer {
		if a.IsNil() || b.IsNil() { // what is not there is least
			return strings.Compare(fmt.Sprint(!a.IsNil()), fmt.Sprint(!b.IsNil()))
		}
		a, b = a.Elem(), b.Elem()
	}
	switch {
	case a.Type() == addrType:
		return a.Interface().(netip.Addr).Compare(b.Interface().(netip.Addr))
	case a.CanUint():
		return cmp.Compare(a.Uint(), b.Uint())
	case a.CanInt():
		return cmp.Compare(a.Int(), b.Int())
	case a.CanFloat():
		return cmp.Compare(a.Float(), b.Float())
	}
	return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) // text, and false before true
}
