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

// Lock takes the lock of a pin path until it is closed or the process ends. It fails with ErrLocked at once when another
// process has it.
func Lock(dir, pinPath string) (io.Closer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make lock directory: %w", err)
	}
	path := lockFile(dir, pinPath)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = writePid(file)
	}
	if err == nil {
		return file, nil
	}
	defer file.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("lock pin path %s (process %s): %w", pinPath, readPid(file), ErrLocked)
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// lockFile is the same for all spellings of one path.
func lockFile(dir, pinPath string) string {
	absolute, err := filepath.Abs(pinPath)
	if err != nil {
		absolute = filepath.Clean(pinPath)
	}
	sum := sha256.Sum256([]byte(absolute))
	return filepath.Join(dir, hex.EncodeToString(sum[:8])+".lock")
}

func writePid(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
	return err
}

func readPid(file *os.File) string {
	text, err := io.ReadAll(io.LimitReader(file, 32))
	if pid := strings.TrimSpace(string(text)); err == nil && pid != "" {
		return pid
	}
	return "unknown"
}
