// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/nearlb/nearlb/pkg/lb"
)

// NameFiles reads from files and directories what names are made of, and follows them as they change. A file that cannot be read or
// breaks a rule is refused as a whole: what it said before stays in force; at the first reading it is an error.
type NameFiles struct {
	args  []string
	log   *slog.Logger
	stdin []byte // what standardInput said, until it is read; nil: nothing

	reader    *reader
	to        NameEvents
	store     *nameStore
	nodes     map[objectKey]bool   // that were told of
	files     map[string]*manifest // by path
	following bool                 // the first reading is over
	watcher   *fsnotify.Watcher    // nil: the kernel has none to give; the files are looked at from time to time
}

// FollowNames reads everything once and tells to of it, Synced at last. Run follows what comes later.
func FollowNames(args []string, stdin io.Reader, log *slog.Logger, to NameEvents) (*NameFiles, error) {
	n := &NameFiles{args: slices.Clone(args), log: log, reader: newNameReader(), to: to, store: newNameStore(to), nodes: map[objectKey]bool{}, files: map[string]*manifest{}}
	if slices.Contains(args, standardInput) {
		data, err := io.ReadAll(stdin)
		if err != nil {
			return nil, plainly("read", standardInputName, err)
		}
		n.stdin = append([]byte{}, data...)
	}
	var err error
	if n.watcher, err = fsnotify.NewWatcher(); err != nil {
		log.Warn("files are not watched but looked at from time to time", "error", err)
	}
	if _, err := n.look(); err != nil {
		return nil, err
	}
	n.following = true
	return n, nil
}

// Run follows the files until ctx ends.
func (n *NameFiles) Run(ctx context.Context) error {
	if n.watcher != nil {
		defer n.watcher.Close()
	}
	for wait := time.Duration(0); ; {
		if !n.await(ctx, wait) {
			return nil
		}
		again, err := n.look()
		if wait = 0; again || err != nil || n.watcher == nil {
			wait = retryAt
		}
	}
}

// look reads what there is and puts it in force. again: no event may tell when there is more. The error is the first refusal.
func (n *NameFiles) look() (again bool, err error) {
	paths, errs := n.paths()
	present := map[string]bool{}
	for _, path := range paths {
		present[path] = true
		m := n.files[path]
		if m == nil {
			m = &manifest{}
			n.files[path] = m
		}
		n.read(path, m)
	}
	for path := range n.files {
		if !present[path] && len(errs) == 0 { // while an argument cannot be read all stays in force
			delete(n.files, path)
		}
	}
	refused := resolve(n.files, func(path string) string { return path })
	objects := map[objectKey]object{}
	for _, path := range slices.Sorted(maps.Keys(n.files)) {
		m := n.files[path]
		if m.wanted() && refused[path] == nil {
			m.good, m.fresh = m.next, false
		}
		for _, o := range m.good {
			objects[o.key] = o
		}
		if m.err != nil {
			refused[path] = m.err
		}
		if refused[path] != nil {
			errs = append(errs, refused[path])
		}
		n.say(path, m, refused[path])
	}
	n.replace(objects)
	if len(errs) > 0 {
		err = errs[0]
	}
	return len(errs) > 0, err
}

// replace puts a complete set of objects in the place of the one before, and tells of what is another one.
func (n *NameFiles) replace(objects map[objectKey]object) {
	changed := map[lb.ServiceName]bool{}
	dirty := func(name lb.ServiceName) { changed[name] = true }
	for key := range n.nodes {
		if _, stays := objects[key]; !stays {
			delete(n.nodes, key)
			n.to.SetNode(key.name, "", "")
		}
	}
	for _, k := range []kind{kindService, kindSlice, kindNamespace, kindPod} {
		for _, key := range n.store.keys(k) {
			if _, stays := objects[key]; !stays {
				n.store.set(key, nil, dirty)
			}
		}
	}
	for key, o := range objects {
		if o.node != nil {
			n.nodes[key] = true
			n.to.SetNode(key.name, o.node.zone, o.node.region)
			continue
		}
		n.store.set(key, o.naming, dirty)
	}
	for _, name := range slices.SortedFunc(maps.Keys(changed), lb.ServiceName.Compare) {
		if named := n.store.services[name]; named != nil {
			n.to.Set(named)
		} else {
			n.to.Remove(name)
		}
	}
	n.to.Synced()
}

// paths are the files that the arguments name now. Each directory is watched before it is read.
func (n *NameFiles) paths() (paths []string, errs []error) {
	for _, arg := range n.args {
		if arg == standardInput {
			paths = append(paths, standardInput)
			continue
		}
		info, err := os.Stat(arg)
		if err != nil {
			errs = append(errs, plainly("read", arg, err))
			continue
		}
		if !info.IsDir() {
			n.watch(filepath.Dir(arg))
			paths = append(paths, filepath.Clean(arg))
			continue
		}
		n.watch(arg)
		names, err := manifests(arg)
		if err != nil {
			errs = append(errs, plainly("read directory", arg, err))
		}
		for _, name := range names {
			paths = append(paths, filepath.Join(arg, name))
		}
	}
	return paths, errs
}

func (n *NameFiles) watch(dir string) {
	if n.watcher == nil {
		return
	}
	if err := n.watcher.Add(dir); err != nil {
		n.log.Warn("directory is not watched", "directory", dir, "error", err)
	}
}

// read takes a file's content if it may be another one.
func (n *NameFiles) read(path string, m *manifest) {
	warn := func(line string) { n.log.Warn("manifest is odd", "problem", line) }
	if path == standardInput {
		if n.stdin != nil {
			m.update(n.reader, standardInputName, n.stdin, warn)
			n.stdin = nil
		}
		return
	}
	info, err := os.Stat(path)
	if err == nil && m.err == nil && m.stamp.unchanged(info) {
		return
	}
	read := time.Now()
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		m.err, m.stamp = &ObjectError{File: path, Problem: plainly("read", path, err).Error()}, stamp{}
		return
	}
	m.update(n.reader, path, data, warn)
	m.stamp = stamp{info: info, read: read}
}

// say logs a refusal once, and its end.
func (n *NameFiles) say(path string, m *manifest, refusal *ObjectError) {
	said := ""
	if refusal != nil {
		said = refusal.Error()
	}
	switch {
	case said == m.said, !n.following: // the first refusal is the caller's
	case said == "":
		n.log.Info("manifest is accepted again", "file", path)
	default:
		n.log.Warn("manifest is refused: what it said before stays in force", "error", refusal)
	}
	m.said = said
}

// await waits for news of the directories and then for them to stop; no longer than a time, if it has one. False: ctx ended.
func (n *NameFiles) await(ctx context.Context, longest time.Duration) bool {
	var over <-chan time.Time
	if longest > 0 {
		over = time.After(longest)
	}
	var events chan fsnotify.Event
	var errs chan error // events were lost
	if n.watcher != nil {
		events, errs = n.watcher.Events, n.watcher.Errors
	}
	for end := (time.Time{}); ; {
		select {
		case <-ctx.Done():
			return false
		case <-over:
			return true
		case <-events:
		case <-errs:
		}
		if end.IsZero() {
			end = time.Now().Add(atMost)
		}
		over = time.After(min(quiet, time.Until(end)))
	}
}
