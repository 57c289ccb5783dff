// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/tests/kernels/job"
)

// port is where events go.
type port struct {
	mu   sync.Mutex
	file *os.File
}

// openPort opens a serial port and has it carry bytes as they are.
func openPort(path string) (*port, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	settings, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("read settings of %s: %w", path, err)
	}
	settings.Oflag &^= unix.OPOST
	settings.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	if err := unix.IoctlSetTermios(int(file.Fd()), unix.TCSETS, settings); err != nil {
		return nil, fmt.Errorf("set up %s: %w", path, err)
	}
	return &port{file: file}, nil
}

func (p *port) send(event job.Event) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return json.NewEncoder(p.file).Encode(event)
}

// close waits until everything has left.
func (p *port) close() {
	_ = unix.IoctlSetInt(int(p.file.Fd()), unix.TCSBRK, 1)
	p.file.Close()
}
