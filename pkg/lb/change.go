// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"fmt"
	"strings"
)

// String prints one line for each frontend and backend that changed: '+' came, '-' went, '~' differs. Empty without changes.
func (c Change) String() string {
	var out strings.Builder
	for _, f := range c.Frontends {
		out.WriteString(f.String())
		out.WriteByte('\n')
	}
	for _, b := range c.Backends {
		out.WriteString(b.String())
		out.WriteByte('\n')
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// String is the frontend's line of Change.String.
func (f FrontendChange) String() string {
	switch {
	case f.Old == nil && f.New == nil:
		return "  frontend"
	case f.Old == nil:
		return "+ frontend " + f.New.line()
	case f.New == nil:
		return "- frontend " + f.Old.line()
	}
	return fmt.Sprintf("~ frontend %v %v %v%s", f.New.Key, f.New.Kind, f.New.Port, f.differences())
}

func (f FrontendChange) differences() string {
	var out differences
	out.add("kind", string(f.Old.Kind), string(f.New.Kind))
	out.add("port", f.Old.Port.String(), f.New.Port.String())
	out.addSide("internal", f.Old.Internal, f.New.Internal)
	out.addSide("external", f.Old.External, f.New.External)
	out.add("affinity", f.Old.Affinity.String(), f.New.Affinity.String())
	out.add("ranges", words(f.Old.SourceRanges), words(f.New.SourceRanges))
	return out.String()
}

// String is the backend's line of Change.String.
func (b BackendChange) String() string {
	switch {
	case b.Old == nil && b.New == nil:
		return "  backend"
	case b.Old == nil:
		return "+ backend " + b.New.line()
	case b.New == nil:
		return "- backend " + b.Old.line()
	}
	var out differences
	out.add("state", string(b.Old.State), string(b.New.State))
	out.add("lists", words(b.Old.Lists), words(b.New.Lists))
	out.add("near", string(b.Old.Near), string(b.New.Near))
	out.add("node", b.Old.Node, b.New.Node)
	out.add("zone", b.Old.Zone, b.New.Zone)
	return fmt.Sprintf("~ backend %v%s", b.New.Key, out.String())
}

func (f Frontend) line() string {
	line := fmt.Sprintf("%v %v %v; internal %v; external %v", f.Key, f.Kind, f.Port, f.Internal, f.External)
	if f.Affinity != 0 {
		line += fmt.Sprintf("; affinity %v", f.Affinity)
	}
	if len(f.SourceRanges) > 0 {
		line += "; ranges " + words(f.SourceRanges)
	}
	return line
}

func (b Backend) line() string {
	return fmt.Sprintf("%v; state %s; lists %s; near %s; node %q; zone %q", b.Key, b.State, words(b.Lists), b.Near, b.Node, b.Zone)
}

// String is "balance same-zone (zone 2)", "balance all, no-hints (cluster 3)": action, reason, note and how many backends each
// tier has.
func (s Side) String() string {
	line := fmt.Sprintf("%s %s", s.Action, s.Reason)
	if s.Note != "" {
		line += ", " + string(s.Note)
	}
	for _, t := range s.Tiers {
		line += fmt.Sprintf(" (%s %d)", t.Name, len(t.Backends))
	}
	return line
}

// differences collects "; name old -> new" for what is not the same.
type differences struct{ strings.Builder }

func (d *differences) add(name, old, new string) {
	if old != new {
		fmt.Fprintf(d, "; %s %s -> %s", name, orNone(old), orNone(new))
	}
}

// addSide tells, beside what the side's summary shows, how many backends came and went in its tiers.
func (d *differences) addSide(name string, old, new Side) {
	if old.Equal(new) {
		return
	}
	in, out := 0, 0
	pairs(old.backends(), new.backends(), BackendKey.Compare, func(a, b *BackendKey) {
		switch {
		case a == nil:
			in++
		case b == nil:
			out++
		}
	})
	fmt.Fprintf(d, "; %s %v -> %v, %d in, %d out", name, old, new, in, out)
}

func (s Side) backends() []BackendKey {
	if len(s.Tiers) == 1 {
		return s.Tiers[0].Backends
	}
	var all []BackendKey
	for _, t := range s.Tiers {
		all = append(all, t.Backends...)
	}
	return all
}

func words[T any](list []T) string {
	if len(list) == 0 {
		return "none"
	}
	text := make([]string, len(list))
	for i, v := range list {
		text[i] = fmt.Sprint(v)
	}
	return strings.Join(text, ",")
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
