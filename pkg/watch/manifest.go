// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"crypto/sha256"
	"maps"
	"os"
	"slices"
	"time"
)

// manifest is one file of a followed directory.
type manifest struct {
	stamp stamp
	sum   [sha256.Size]byte
	good  []object     // in force
	next  []object     // what the newest content says, when err is nil
	fresh bool         // next is not in force yet
	err   *ObjectError // why the newest content cannot be read
	said  string       // the refusal that was logged last
}

// stamp tells whether a file changed without reading it.
type stamp struct {
	info os.FileInfo
	read time.Time
}

// settled is how much older than the reading a file's time must be to be trusted: a later write may leave time and size
// as they were, when the clock of file times is coarse.
const settled = 2 * time.Second

func (s stamp) unchanged(info os.FileInfo) bool {
	return s.info != nil && os.SameFile(s.info, info) && s.info.Size() == info.Size() &&
		s.info.ModTime().Equal(info.ModTime()) && s.read.Sub(info.ModTime()) > settled
}

// update takes new content. A file that became empty is refused: it is more likely being written than meant.
func (m *manifest) update(r *reader, name string, data []byte, warn func(string)) {
	sum := sha256.Sum256(data)
	if m.sum == sum && m.stamp.info != nil {
		return
	}
	m.sum = sum
	if len(bytes.TrimSpace(data)) == 0 && len(m.good) > 0 {
		m.err = &ObjectError{File: name, Problem: "the file is empty; delete it to remove its objects"}
		return
	}
	objects, err := r.read(name, data, warn)
	m.err = err
	if err == nil {
		m.next, m.fresh = objects, true
	}
}

// wanted says whether the newest content is to be put in force.
func (m *manifest) wanted() bool { return m.err == nil && m.fresh }

// resolve decides which files' newest content comes into force: no object may be defined by two. Who has an object keeps
// it; between new ones the first by name has it; the other file is refused and stays as it was. Result: the refused.
func resolve(files map[string]*manifest, path func(string) string) map[string]*ObjectError {
	refused := map[string]*ObjectError{}
	for before := -1; before < len(refused); {
		before = len(refused)
		taken := inForce(files, refused)
		for _, name := range candidates(files, refused) {
			claim(taken, name, kept(files[name]))
		}
		for _, name := range candidates(files, refused) {
			if key, other := claim(taken, name, files[name].next); other != "" {
				refused[name] = twice(path(name), key, path(other))
			}
		}
	}
	reconsider(files, refused)
	return refused
}

// reconsider lets in refused files whose rival was refused in the end, too.
func reconsider(files map[string]*manifest, refused map[string]*ObjectError) {
	for before := -1; before != len(refused); {
		before = len(refused)
		for _, name := range slices.Sorted(maps.Keys(refused)) {
			err := refused[name]
			delete(refused, name)
			taken := inForce(files, refused)
			for _, other := range candidates(files, refused) {
				if other != name {
					claim(taken, other, files[other].next)
				}
			}
			if _, other := claim(taken, name, files[name].next); other != "" {
				refused[name] = err
			}
		}
	}
}

// candidates are the files whose newest content may come into force, sorted.
func candidates(files map[string]*manifest, refused map[string]*ObjectError) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if files[name].wanted() && refused[name] == nil {
			out = append(out, name)
		}
	}
	return out
}

// inForce says whose the objects are of all files that stay as they are.
func inForce(files map[string]*manifest, refused map[string]*ObjectError) map[objectKey]string {
	taken := map[objectKey]string{}
	for name, m := range files {
		if !m.wanted() || refused[name] != nil {
			claim(taken, name, m.good)
		}
	}
	return taken
}

// claim notes whose the objects are; it says the first that is somebody else's, and whose.
func claim(taken map[objectKey]string, name string, objects []object) (clash objectKey, owner string) {
	for _, o := range objects {
		other, ok := taken[o.key]
		switch {
		case !ok:
			taken[o.key] = name
		case other != name && owner == "":
			clash, owner = o.key, other
		}
	}
	return clash, owner
}

// kept are the objects that are in force and stay in the file.
func kept(m *manifest) (out []object) {
	old := map[objectKey]bool{}
	for _, o := range m.good {
		old[o.key] = true
	}
	for _, o := range m.next {
		if old[o.key] {
			out = append(out, o)
		}
	}
	return out
}
