// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// Under a pin path each layout has a directory: a generation. Its name says what it is worth, so that whoever starts next,
// of either layout, knows how far the one before came:
//
//	v6                 in force: what serves and is published to
//	new_v6             being made by a start that has attached nothing yet; worth nothing without that process
//	old_1700000000_v5  was in force; programs of it may be attached still, and its connections are carried over
var generationName = regexp.MustCompile(`^(?:(new)_|(old)_([0-9]+)_)?v([0-9]+)$`)

type generation struct {
	path             string
	unfinished, left bool
	since            int64 // when it was left
	layout           uint32
}

func (g generation) inForce() bool { return !g.unfinished && !g.left }

// generations lists what is under the pin path: in force first, then what was left, the last one first, then what is unfinished.
func generations(pinPath string) ([]generation, error) {
	entries, err := os.ReadDir(pinPath)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	var all []generation
	for _, e := range entries {
		parts := generationName.FindStringSubmatch(e.Name())
		if parts == nil || !e.IsDir() {
			continue
		}
		g := generation{path: filepath.Join(pinPath, e.Name()), unfinished: parts[1] != "", left: parts[2] != ""}
		g.since, _ = strconv.ParseInt(parts[3], 10, 64)
		layout, err := strconv.ParseUint(parts[4], 10, 32)
		if err != nil {
			continue
		}
		g.layout = uint32(layout)
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b generation) int {
		return cmp.Or(-cmp.Compare(a.rank(), b.rank()), -cmp.Compare(a.since, b.since), -cmp.Compare(a.layout, b.layout))
	})
	return all, nil
}

func (g generation) rank() int {
	switch {
	case g.inForce() && g.layout == SchemaVersion:
		return 3
	case g.inForce():
		return 2
	case g.left:
		return 1
	}
	return 0
}

func (g generation) maps() string     { return filepath.Join(g.path, "maps") }
func (g generation) programs() string { return filepath.Join(g.path, "programs") }
func (g generation) links() string    { return filepath.Join(g.path, "links") }

// name is "v2".
func (g generation) name() string { return "v" + strconv.Itoa(int(g.layout)) }

// leave renames a generation that another one takes the place of.
func (g *generation) leave(pinPath string) error {
	return g.rename(filepath.Join(pinPath, fmt.Sprintf("old_%d_%s", time.Now().UnixNano(), g.name())))
}

func (g *generation) rename(path string) error {
	if err := os.Rename(g.path, path); err != nil {
		return fmt.Errorf("rename pins: %w", err)
	}
	g.path, g.unfinished, g.left = path, false, generationName.FindStringSubmatch(filepath.Base(path))[2] != ""
	return nil
}

// settle puts right what a start that was killed left behind: at most one generation is in force then, none is unfinished.
func settle(pinPath string) (current *generation, left []generation, err error) {
	all, err := generations(pinPath)
	if err != nil {
		return nil, nil, err
	}
	for _, g := range all {
		switch {
		case g.unfinished:
			if _, err := removeGeneration(g.path); err != nil {
				return nil, nil, err
			}
		case current == nil:
			if g.left { // killed between the two renames of TakeOver
				if err := g.rename(filepath.Join(pinPath, g.name())); err != nil {
					return nil, nil, err
				}
			}
			current = &g
		default:
			if g.inForce() {
				if err := g.leave(pinPath); err != nil {
					return nil, nil, err
				}
			}
			left = append(left, g)
		}
	}
	return current, left, nil
}

// LinkDirectory is where the links of this layout are pinned, one file a device and direction.
func LinkDirectory(pinPath string) string { return own(pinPath).links() }

// QdiscDirectory is where it is noted which qdiscs an agent made, whatever its layout.
func QdiscDirectory(pinPath string) string { return filepath.Join(pinPath, "qdiscs") }

// FormerLinkDirectories are those of other generations whose programs may be attached, the last one first.
func FormerLinkDirectories(pinPath string) []string {
	all, err := generations(pinPath)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, g := range all {
		if !g.unfinished && g.path != own(pinPath).path {
			dirs = append(dirs, g.links())
		}
	}
	return dirs
}

// own is this layout's generation in force, whether or not it exists.
func own(pinPath string) generation {
	return generation{path: filepath.Join(pinPath, layoutVersion), layout: SchemaVersion}
}
