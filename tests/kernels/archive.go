// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"path"
)

// archive writes an initial file system as kernels read it: cpio, format newc.
type archive struct {
	file  *os.File
	out   *bufio.Writer
	made  map[string]bool // files and directories that it has
	inode int
	err   error // the first one; later calls do nothing
}

func newArchive(path string) (*archive, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &archive{file: file, out: bufio.NewWriterSize(file, 1<<20), made: map[string]bool{"/": true}}, nil
}

const (
	modeDirectory = 0o040755
	modeProgram   = 0o100755
)

// directory adds a directory and those that it is in.
func (a *archive) directory(name string) {
	if a.made[name] {
		return
	}
	a.directory(path.Dir(name))
	a.entry(name, modeDirectory, nil)
}

// program adds a file that may be run. The first of a name stays.
func (a *archive) program(name string, text []byte) {
	if a.made[name] {
		return
	}
	a.directory(path.Dir(name))
	a.entry(name, modeProgram, text)
}

func (a *archive) entry(name string, mode int, text []byte) {
	a.made[name] = true
	a.inode++
	inside := name[1:] + "\x00"
	if a.err != nil {
		return
	}
	// inode mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
	_, a.err = fmt.Fprintf(a.out, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, mode, 0, 0, 1, 0, len(text), 0, 0, 0, 0, len(inside), 0)
	const header = 110
	a.write([]byte(inside), header+len(inside))
	a.write(text, len(text))
}

// write writes bytes and fills up to a multiple of four, counted from length.
func (a *archive) write(text []byte, length int) {
	for _, part := range [][]byte{text, make([]byte, (4-length%4)%4)} {
		if a.err == nil {
			_, a.err = a.out.Write(part)
		}
	}
}

func (a *archive) close() error {
	a.entry("/TRAILER!!!", 0, nil)
	if a.err == nil {
		a.err = a.out.Flush()
	}
	if err := a.file.Close(); a.err == nil {
		a.err = err
	}
	return a.err
}
