// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Log is a Ring that outlives its process: its lines are appended to a file, which is put aside before it is larger than the ring may be.
// So the disk has twice as much at most.
type Log struct {
	*Ring
	path string

	mu      sync.Mutex // of the file
	written uint64     // number of the first line that is not in the file
}

// longestLine is what a line of a file may have; a longer one is none of ours.
const longestLine = 16 << 10

// former is where a file is put aside.
func former(path string) string { return path + ".1" }

// OpenLog goes on with the lines of a file, if there is one. What it cannot read is left out and is the error; the log can be used.
func OpenLog(path string, limit int) (*Log, error) {
	l := &Log{Ring: NewRing(limit), path: path}
	lines, err := ReadLog(path, limit)
	for _, line := range lines {
		l.Add(line)
	}
	_, l.written, _, _ = l.From(0)
	return l, err
}

// ReadLog reads the lines that a Log of such a limit left, oldest first. Nothing in them is trusted: what is no Change in one line, as a
// last one that was torn, is left out.
func ReadLog(path string, limit int) (lines [][]byte, err error) {
	for _, file := range []string{former(path), path} {
		text, failed := readBounded(file, limit)
		if errors.Is(failed, fs.ErrNotExist) {
			continue
		}
		err = errors.Join(err, failed)
		for line := range bytes.Lines(text) {
			line = bytes.TrimSuffix(line, []byte("\n"))
			var c Change
			if len(line) <= longestLine && json.Unmarshal(line, &c) == nil && c.What != "" && !c.Time.IsZero() {
				lines = append(lines, bytes.Clone(line))
			}
		}
	}
	return lines, err
}

// readBounded reads a file of our own, and no more of it than it may have: the end of one that has more.
func readBounded(path string, limit int) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	defer file.Close()
	most := int64(limit + longestLine)
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("read journal %s: no regular file", path))
	} else if info.Size() > most {
		if _, err := file.Seek(-most, io.SeekEnd); err != nil {
			return nil, fmt.Errorf("read journal: %w", err)
		}
	}
	text, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	return text, nil
}

// Keep writes lines to the file as they come, until ctx ends, and again after a while where that failed. Each attempt's error, or nil, is
// told.
func (l *Log) Keep(ctx context.Context, tried func(error)) {
	for {
		_, _, _, news := l.From(l.next())
		err := l.Write()
		tried(err)
		var again <-chan time.Time
		if err != nil {
			again = time.After(writeAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-news:
		case <-again:
		}
		select { // what comes together is written together
		case <-ctx.Done():
			return
		case <-time.After(writePause):
		}
	}
}

const (
	writePause = 100 * time.Millisecond // the least time between two writes
	writeAgain = 5 * time.Second        // after one that failed, where no line comes
)

func (l *Log) next() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written
}

// Write appends the lines that are not in the file yet, all at once. They survive the process, not the machine: nothing waits for a disk.
func (l *Log) Write() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines, next, _, _ := l.From(l.written)
	if len(lines) == 0 {
		return nil
	}
	var text bytes.Buffer
	for _, line := range lines {
		text.Write(line)
		text.WriteByte('\n')
	}
	if err := l.append(text.Bytes()); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	l.written = next
	return nil
}

// append puts the file aside first where it has no room for the text: what cannot be written is written later, and is in no file till then.
func (l *Log) append(text []byte) (err error) {
	file, size, err := l.open()
	if err == nil && size > 0 && size+int64(len("\n")+len(text)) > int64(l.limit) {
		if err := errors.Join(file.Close(), os.Rename(l.path, former(l.path))); err != nil {
			return err
		}
		file, size, err = l.open()
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := appendLines(file, size, text); err != nil {
		return errors.Join(err, file.Truncate(size))
	}
	return nil
}

// open opens the file to append to it, and says how many bytes it has.
func (l *Log) open() (*os.File, int64, error) {
	file, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, 0, errors.Join(err, fmt.Errorf("%s is no regular file", l.path), file.Close())
	}
	return file, info.Size(), nil
}

// appendLines begins with an end of line where the file does not end with one: what was torn stays apart.
func appendLines(file *os.File, size int64, text []byte) error {
	if size > 0 {
		last := make([]byte, 1)
		if _, err := file.ReadAt(last, size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			text = append([]byte("\n"), text...)
		}
	}
	_, err := file.Write(text)
	return err
}

// RemoveLog removes what a Log left, and names it.
func RemoveLog(path string) (removed []string, err error) {
	for _, file := range []string{former(path), path} {
		switch failed := os.Remove(file); {
		case failed == nil:
			removed = append(removed, file)
		case !errors.Is(failed, fs.ErrNotExist):
			err = errors.Join(err, failed)
		}
	}
	return removed, err
}
