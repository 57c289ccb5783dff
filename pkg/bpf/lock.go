// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrLocked: another process has the lock of this pin path; the error's text names its process id.
var ErrLocked = errors.New("another agent has the lock")

// DefaultLockDir is where lock files are: a bpffs has no regular files.
const DefaultLockDir = "/run/nearlb"

// PathLock is the lock of a pin path, taken.
type PathLock struct {
	*os.File
	path string
	made bool // an agent made the directory
}

// Lock takes the lock of a pin path until it is closed or the process ends. It fails with ErrLocked at once when another
// process has it.
func Lock(dir, pinPath string) (*PathLock, error) {
	for {
		taken, err := lock(dir, lockFile(dir, pinPath))
		if errors.Is(err, unix.EWOULDBLOCK) {
			defer taken.Close()
			return nil, fmt.Errorf("lock pin path %s (process %s): %w", pinPath, readPid(taken.File), ErrLocked)
		}
		if err != nil {
			return nil, err
		}
		if taken.current() { // and was not removed by a clean-up while we waited for it
			err := taken.write()
			if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
				err = nil // it is locked without our number in it
			}
			return taken, err
		}
		taken.Close()
	}
}

// lock opens and locks the file. It gives the file with the error EWOULDBLOCK.
func lock(dir, path string) (*PathLock, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("make lock directory: %w", err)
	}
	made := os.Mkdir(dir, 0o755)
	if made != nil && !errors.Is(made, os.ErrExist) {
		return nil, fmt.Errorf("make lock directory: %w", made)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	taken := &PathLock{file, path, made == nil}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	return taken, err
}

// current says whether the file is the one of its name.
func (l *PathLock) current() bool {
	own, err := l.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(l.path)
	return err == nil && os.SameFile(own, named)
}

// madeDirectory is the second line of a lock file whose directory an agent made.
const madeDirectory = "made directory"

func (l *PathLock) write() error {
	before, err := io.ReadAll(io.LimitReader(l.File, 64))
	if err != nil {
		return fmt.Errorf("read lock: %w", err)
	}
	l.made = l.made || strings.Contains(string(before), madeDirectory)
	text := fmt.Sprintln(os.Getpid())
	if l.made {
		text += madeDirectory + "\n"
	}
	if _, err := l.WriteAt([]byte(text), 0); err != nil { // first, so that who is killed in between loses no line
		return fmt.Errorf("write lock: %w", err)
	}
	if err := l.Truncate(int64(len(text))); err != nil {
		return fmt.Errorf("write lock: %w", err)
	}
	return nil
}

// Remove gives the lock up and removes its file, and its directory if an agent made that and nobody else uses it.
func (l *PathLock) Remove() error {
	err := os.Remove(l.path)
	if l.made {
		_ = os.Remove(filepath.Dir(l.path))
	}
	return errors.Join(err, l.Close())
}

func lockFile(dir, pinPath string) string { return filepath.Join(dir, LockName(dir, pinPath)+".lock") }

// LockName is what the names of a pin path's files in the lock directory begin with. It is the same for all spellings of one path, and for
// who has the node's files below another directory, as `kubectl debug` has: there both paths are below the same one.
func LockName(dir, pinPath string) string {
	pins := absolute(pinPath)
	if root, found := strings.CutSuffix(absolute(dir), DefaultLockDir); found && strings.HasPrefix(pins, root+"/") {
		pins = pins[len(root):]
	}
	sum := sha256.Sum256([]byte(pins))
	return hex.EncodeToString(sum[:8])
}

func absolute(path string) string {
	if absolute, err := filepath.Abs(path); err == nil {
		return absolute
	}
	return filepath.Clean(path)
}

func readPid(file *os.File) string {
	text, err := io.ReadAll(io.LimitReader(file, 32))
	if pid, _, _ := strings.Cut(string(text), "\n"); err == nil && pid != "" {
		return pid
	}
	return "unknown"
}
