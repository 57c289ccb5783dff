// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// How long to wait for more after an event of the directory, at least and at most: an editor or a copy makes several.
const (
	quiet   = 25 * time.Millisecond
	atMost  = 500 * time.Millisecond
	retryIn = 100 * time.Millisecond
	retryAt = 5 * time.Second // the longest wait before the next try
)

// Manifests reads the *.yaml, *.yml and *.json files of a directory, not those of directories in it nor hidden ones, and
// follows them as they change. A file that cannot be read or breaks a rule is refused as a whole: what it said before stays
// in force. While the directory itself cannot be read all stays in force. To change several objects of a file at once
// write another and rename it: a file that is written in place may be read half.
func Manifests(dir string, cfg NodeConfig, log *slog.Logger) Source {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	read := newReader()
	if cfg.Names != nil {
		read = newNameReader()
	}
	return &directory{store: newStore(cfg), reader: read, dir: dir, log: log, files: map[string]*manifest{}}
}

// directory is a source. Run's goroutine alone has the fields that are not the store's.
type directory struct {
	*store
	*reader
	dir     string
	log     *slog.Logger
	files   map[string]*manifest // by base name
	watcher *fsnotify.Watcher    // nil: the kernel has none to give; the directory is looked at from time to time
	watched os.FileInfo          // the directory that the watch is on
	trouble string               // what was said last of the directory
}

// Run follows the directory until ctx ends.
func (d *directory) Run(ctx context.Context, ev Events) error {
	var err error
	if d.watcher, err = fsnotify.NewWatcher(); err != nil {
		d.log.Warn("directory is not watched but looked at from time to time", "directory", d.dir, "error", err)
	} else {
		defer d.watcher.Close()
	}
	touched, wait, synced := map[string]bool{}, retryIn, false
	for ctx.Err() == nil {
		var c changes
		again, err := d.look(touched, &c)
		if err == nil && !synced {
			synced = true
			ev.Synced()
		} else {
			c.tell(ev)
		}
		if !again && err == nil {
			wait = retryIn
			touched = d.await(ctx, 0)
			continue
		}
		touched = d.await(ctx, wait)
		wait = min(2*wait, retryAt)
	}
	return nil
}

// look reads what changed and puts it in force. again: something could not be read and no event may tell when it can.
func (d *directory) look(touched map[string]bool, c *changes) (again bool, err error) {
	unwatched := d.follow()
	names, err := manifests(d.dir)
	d.say(err)
	if err != nil {
		return true, err
	}
	present := map[string]bool{}
	for _, name := range names {
		found, readable := d.readFile(name, touched[name])
		present[name] = found
		again = again || !readable
	}
	var gone []object
	for name, m := range d.files {
		if !present[name] {
			gone = append(gone, m.good...)
			delete(d.files, name)
		}
	}
	d.enforce(gone, c)
	return again || unwatched, nil
}

// follow puts the watch on the directory that has the name now, and on the one it is in, where another may take its
// place.
func (d *directory) follow() (failed bool) {
	if d.watcher == nil {
		return true
	}
	info, err := os.Stat(d.dir)
	if err != nil {
		d.watched = nil
		_ = d.watcher.Add(filepath.Dir(d.dir)) // without it the next try finds the directory
		return true
	}
	if d.watched != nil && os.SameFile(d.watched, info) {
		return false
	}
	_ = d.watcher.Remove(d.dir) // the watch on the one before, if any is left
	if err := d.watcher.Add(d.dir); err != nil {
		return true
	}
	_ = d.watcher.Add(filepath.Dir(d.dir))
	d.watched = info
	return false
}

// say logs the trouble with the directory once, and once that it is over.
func (d *directory) say(err error) {
	if err != nil {
		err = plainly("read directory", d.dir, err)
	}
	switch now := text(err); {
	case now == d.trouble:
		return
	case err == nil:
		d.log.Info("directory can be read again", "directory", d.dir)
	default:
		d.log.Warn("directory cannot be read: its objects stay in force", "directory", d.dir, "error", err)
	}
	d.trouble = text(err)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// readFile reads a file if it changed. found is false when it is gone by now.
func (d *directory) readFile(name string, touched bool) (found, readable bool) {
	path := d.path(name)
	m := d.files[name]
	if m == nil {
		m = &manifest{}
	}
	info, err := os.Stat(path)
	if err == nil && !touched && m.err == nil && m.stamp.unchanged(info) {
		return true, true
	}
	read := time.Now()
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, true
	}
	d.files[name] = m
	if err != nil {
		m.err, m.stamp = &ObjectError{File: path, Problem: plainly("read", path, err).Error()}, stamp{}
		return true, false
	}
	m.update(d.reader, path, data, func(line string) { d.log.Warn("manifest is odd", "problem", line) })
	m.stamp = stamp{info: info, read: read}
	return true, true
}

func (d *directory) path(name string) string { return filepath.Join(d.dir, name) }

// enforce puts the newest content of all files in force, but of those that are refused. gone are the objects of files that do not
// exist any more.
func (d *directory) enforce(gone []object, c *changes) {
	refused := resolve(d.files, d.path)
	var puts []object
	before, after := map[objectKey]bool{}, map[objectKey]bool{}
	note(before, gone)
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		m := d.files[name]
		note(before, m.good)
		if m.wanted() && refused[name] == nil {
			m.good, m.fresh = m.next, false
			puts = append(puts, m.good...)
		}
		note(after, m.good)
	}
	var drops []objectKey
	for key := range before {
		if !after[key] {
			drops = append(drops, key)
		}
	}
	d.apply(puts, drops, c)
	d.report(refused)
}

func note(keys map[objectKey]bool, objects []object) {
	for _, o := range objects {
		keys[o.key] = true
	}
}

// report notes the refusals for Problems, then says each once, and its end.
func (d *directory) report(refused map[string]*ObjectError) {
	var errs []*ObjectError
	for name, m := range d.files {
		if m.err != nil {
			refused[name] = m.err
		}
		if refused[name] != nil {
			errs = append(errs, refused[name])
		}
	}
	d.refuseFiles(errs)
	for name, m := range d.files {
		said, err := "", refused[name]
		if err != nil {
			said = err.Error()
		}
		switch {
		case said == m.said:
		case said == "":
			d.log.Info("manifest is accepted again", "file", d.path(name))
		default:
			d.log.Warn("manifest is refused: what it said before stays in force", "error", err)
		}
		m.said = said
	}
}

// await waits for events of the directory to come and then to stop, and names the files they are about. With a time it
// waits no longer than that for the first.
func (d *directory) await(ctx context.Context, longest time.Duration) map[string]bool {
	touched := map[string]bool{}
	var first <-chan time.Time
	if longest > 0 {
		first = time.After(longest)
	}
	if !d.event(ctx, first, touched) {
		return touched
	}
	for end := time.Now().Add(atMost); d.event(ctx, time.After(min(quiet, time.Until(end))), touched); {
	}
	return touched
}

// event waits for one event of the directory; false when the time is over before.
func (d *directory) event(ctx context.Context, over <-chan time.Time, touched map[string]bool) bool {
	var events chan fsnotify.Event
	var errs chan error
	if d.watcher != nil {
		events, errs = d.watcher.Events, d.watcher.Errors
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-over:
			return false
		case e := <-events:
			if d.concerns(e, touched) {
				return true
			}
		case <-errs: // events were lost: any file may have changed
			d.watched = nil
			for name := range d.files {
				touched[name] = true
			}
			return true
		}
	}
}

// concerns notes the file that an event is about. What happens to the directory's neighbours is not of interest, and what
// happens to itself may mean that another one has its name now.
func (d *directory) concerns(e fsnotify.Event, touched map[string]bool) bool {
	switch {
	case e.Name == d.dir:
		d.watched = nil
	case strings.HasPrefix(e.Name, d.dir+string(filepath.Separator)):
		touched[filepath.Base(e.Name)] = true
	default:
		return false
	}
	return true
}
