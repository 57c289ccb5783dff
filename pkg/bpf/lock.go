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

// ErrLocked: another process holds the lock of this pin path; the error's text names its process id.
var ErrLocked = errors.New("another agent has the lock")

// DefaultLockDir is where lock files are: a bpffs holds no regular files.
const DefaultLockDir = "/run/nearlb"

// Held is a lock that this process has.
type Held struct {
	*os.File
	path string
	made bool // an agent made the directory
}

// Lock takes the lock of a pin path until it is closed or the process ends. It fails with ErrLocked at once when another
// process has it.
func Lock(dir, pinPath string) (*Held, error) {
	for {
		held, err := lock(dir, lockFile(dir, pinPath))
		if errors.Is(err, unix.EWOULDBLOCK) {
			defer held.Close()
			return nil, fmt.Errorf("lock pin path %s (process %s): %w", pinPath, readPid(held.File), ErrLocked)
		}
		if err != nil {
			return nil, err
		}
		if held.current() { // and was not removed by a clean-up while we waited for it
			err := held.write()
			if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
				err = nil // the lock holds without our number in it
			}
			return held, err
		}
		held.Close()
	}
}

// lock opens and locks the file. It gives the file with the error EWOULDBLOCK.
func lock(dir, path string) (*Held, error) {
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
	held := &Held{file, path, made == nil}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	return held, err
}

// current says whether the file is the one of its name.
func (h *Held) current() bool {
	own, err := h.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(h.path)
	return err == nil && os.SameFile(own, named)
}

// madeDirectory is the second line of a lock file whose directory an agent made.
const madeDirectory = "made directory"

func (h *Held) write() error {
	before, err := io.ReadAll(io.LimitReader(h.File, 64))
	if err != nil {
		return fmt.Errorf("read lock: %w", err)
	}
	h.made = h.made || strings.Contains(string(before), madeDirectory)
	text := fmt.Sprintln(os.Getpid())
	if h.made {
		text += madeDirectory + "\n"
	}
	if err := h.Truncate(0); err != nil {
		return fmt.Errorf("write lock: %w", err)
	}
	if _, err := h.WriteAt([]byte(text), 0); err != nil {
		return fmt.Errorf("write lock: %w", err)
	}
	return nil
}

// Remove gives the lock up and removes its file, and its directory if an agent made that and nobody else uses it.
func (h *Held) Remove() error {
	err := os.Remove(h.path)
	if h.made {
		_ = os.Remove(filepath.Dir(h.path))
	}
	return errors.Join(err, h.Close())
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
