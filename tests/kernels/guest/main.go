// SPDX-License-Identifier: Apache-2.0

// Command guest is the first process of the machines that tests/kernels boots: it mounts what every machine has, loads the
// modules of its job, runs the programs of its job one after the other, tells what they print, and turns the machine off.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/tests/kernels/job"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest is the first process of a machine: see tests/kernels")
		os.Exit(2)
	}
	if err := serve(); err != nil {
		fmt.Println("guest:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // qemu -no-reboot ends with it, and needs no ACPI for that
	select {}
}

func serve() error {
	if err := mountAll(); err != nil {
		return err
	}
	port, err := openPort(job.Port)
	if err != nil {
		return err
	}
	defer port.close()
	if err := work(port); err != nil {
		return port.send(job.Event{Error: err.Error()})
	}
	return port.send(job.Event{Done: true})
}

func work(port *port) error {
	if err := prepare(); err != nil {
		return err
	}
	text, err := os.ReadFile(job.File)
	if err != nil {
		return err
	}
	var todo job.Job
	if err := json.Unmarshal(text, &todo); err != nil {
		return fmt.Errorf("read %s: %w", job.File, err)
	}
	for _, module := range todo.Modules {
		if err := load(module); err != nil {
			return err
		}
	}
	for i, run := range todo.Runs {
		started := time.Now()
		status, err := execute(port, i, run)
		if err != nil {
			return err
		}
		if err := port.send(job.Event{Run: i, Ended: &job.Ended{Status: status, Seconds: time.Since(started).Seconds()}}); err != nil {
			return err
		}
	}
	return nil
}
