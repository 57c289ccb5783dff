// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/tests/kernels/job"
)

// execute runs a program, sends what it prints and says how it ended: "" is exit status 0. Whatever it leaves behind is ended
// with it.
func execute(port *port, number int, run job.Run) (status string, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer read.Close()
	command := exec.Command(run.Command[0], run.Command[1:]...)
	command.Dir, command.Env = run.Dir, append(os.Environ(), run.Env...)
	command.Stdout, command.Stderr = write, write
	err = command.Start()
	write.Close()
	if err != nil {
		return "", fmt.Errorf("start %s: %w", run.Command[0], err)
	}
	sent := make(chan error, 1)
	go func() { sent <- forward(port, number, read) }()

	late := time.AfterFunc(time.Duration(run.Seconds)*time.Second, func() { _ = unix.Kill(command.Process.Pid, unix.SIGKILL) })
	ended, err := wait(command.Process.Pid)
	if !late.Stop() {
		status = fmt.Sprintf("still running after %d s", run.Seconds)
	} else if ended.Signaled() {
		status = ended.Signal().String()
	} else if ended.ExitStatus() != 0 {
		status = fmt.Sprintf("exit status %d", ended.ExitStatus())
	}
	return status, errors.Join(err, endOthers(), <-sent)
}

// wait waits for the end of a process, and takes note of others that end: the first process of a machine is the parent of
// everybody whose parent is gone.
func wait(pid int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		switch ended, err := unix.Wait4(-1, &status, 0, nil); {
		case err == unix.EINTR:
		case err != nil:
			return 0, fmt.Errorf("wait for process %d: %w", pid, err)
		case ended == pid:
			return status, nil
		}
	}
}

// endOthers ends every other process of the machine.
func endOthers() error {
	if err := unix.Kill(-1, unix.SIGKILL); err != nil && err != unix.ESRCH {
		return fmt.Errorf("end what a program left: %w", err)
	}
	for {
		if _, err := unix.Wait4(-1, nil, 0, nil); err == unix.ECHILD {
			return nil
		} else if err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for what a program left: %w", err)
		}
	}
}

// forward sends whole lines: a line is text, a piece of one may not be.
func forward(port *port, number int, from io.Reader) error {
	for lines := bufio.NewReaderSize(from, 64<<10); ; {
		line, err := lines.ReadString('\n')
		if line != "" {
			if err := port.send(job.Event{Run: number, Output: line}); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
