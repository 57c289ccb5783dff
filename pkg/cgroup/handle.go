// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// handleOfID is FILEID_KERNFS of the kernel's include/linux/exportfs.h: a file handle that is a cgroup's id.
const handleOfID = 0xfe

// ID is the kernel's number of the cgroup whose directory this is. It is never given again. It is the directory's inode number where
// that has 64 bits (kernfs_id_ino in the kernel's include/linux/kernfs.h); name_to_handle_at(2) would tell it as well, but the default
// seccomp profiles of older runtimes (Docker before 25, containerd 1.6) forbid that call.
func ID(directory string) (uint64, error) {
	var system unix.Statfs_t
	if err := unix.Statfs(directory, &system); err != nil {
		return 0, fmt.Errorf("read the id of cgroup %s: %w", directory, err)
	}
	if system.Type != unix.CGROUP2_SUPER_MAGIC {
		return 0, fmt.Errorf("read the id of cgroup %s: it is not on a cgroup2 file system", directory)
	}
	var file unix.Stat_t
	if err := unix.Stat(directory, &file); err != nil {
		return 0, fmt.Errorf("read the id of cgroup %s: %w", directory, err)
	}
	return file.Ino, nil
}

// ErrGone: the cgroup was removed.
var ErrGone = errors.New("the cgroup is gone")

// search is Path for who lacks the capability to open by number (DAC_READ_SEARCH): a look at every directory.
func (m Mount) search(id uint64) (found string, err error) {
	err = filepath.WalkDir(m.Point, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // removed meanwhile, or not for our eyes
		}
		if own, err := ID(path); err != nil || own != id {
			return nil
		}
		found = path
		return filepath.SkipAll
	})
	if err == nil && found == "" {
		err = ErrGone
	}
	if err != nil {
		return "", fmt.Errorf("find cgroup %d: %w", id, err)
	}
	return found, nil
}

// Path is the directory of a cgroup that the mount shows.
func (m Mount) Path(id uint64) (string, error) {
	mount, err := os.Open(m.Point)
	if err != nil {
		return "", fmt.Errorf("find cgroup %d: %w", id, err)
	}
	defer mount.Close()
	handle := unix.NewFileHandle(handleOfID, binary.NativeEndian.AppendUint64(nil, id))
	fd, err := unix.OpenByHandleAt(int(mount.Fd()), handle, unix.O_PATH)
	if errors.Is(err, unix.ESTALE) {
		return "", fmt.Errorf("find cgroup %d: %w", id, ErrGone)
	}
	if errors.Is(err, unix.EPERM) {
		return m.search(id)
	}
	if err != nil {
		return "", fmt.Errorf("find cgroup %d: %w", id, err)
	}
	defer unix.Close(fd)
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
}
