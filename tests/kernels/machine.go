// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nearlb/nearlb/tests/kernels/job"
)

// bootLine is the kernel's command line: a panic ends the machine, and so does what is nearly one; no alarm is raised because the
// emulation is slow, nor does the kernel doubt a timer that comes late. What costs and guards against others than these tests is off.
const bootLine = "console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off init_on_alloc=0 audit=0 " +
	"nowatchdog rcupdate.rcu_cpu_stall_suppress=1 workqueue.watchdog_thresh=1200 sysctl.kernel.hung_task_timeout_secs=1200 no_timer_check"

// silence is how long a machine may say nothing: longer than any single test, on a machine that does other things as well.
const silence = 20 * time.Minute

// machine is what is booted.
type machine struct {
	image, files string
	processors   int
}

// boot runs a machine until it is off, and gives its events to tell. The error says what was wrong with the machine, not
// with the tests.
func (m machine) boot(ctx context.Context, dir string, tell func(job.Event)) error {
	socket := filepath.Join(dir, "port")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	defer listener.Close()
	console := filepath.Join(dir, "console.log")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(silence, cancel)
	defer silent.Stop()
	runtime.LockOSThread() // what ends with its parent ends with the thread that started it
	defer runtime.UnlockOSThread()
	qemu := exec.CommandContext(ctx, "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-accel", "tcg,thread=multi", "-cpu", "Nehalem", "-smp", strconv.Itoa(m.processors), "-m", "3072",
		"-kernel", m.image, "-initrd", m.files, "-append", bootLine,
		"-serial", "file:"+console, "-serial", "unix:"+socket)
	qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var complaint strings.Builder
	qemu.Stderr = &complaint
	if err := qemu.Start(); err != nil {
		return err
	}
	over := make(chan error, 1)
	go func() {
		over <- follow(listener, func(e job.Event) {
			silent.Reset(silence)
			if e.Ended != nil {
				e.Ended.CPU = processorTime(qemu.Process.Pid)
			}
			tell(e)
		})
	}()
	ended := qemu.Wait()
	listener.Close() // qemu may have ended before it ever connected
	err = <-over
	if ctx.Err() != nil {
		err = fmt.Errorf("it hangs: nothing came from it for %s", silence)
	}
	if err == nil && ended != nil {
		err = fmt.Errorf("qemu: %w", ended)
	}
	if bad := alarming(console); len(bad) > 0 {
		err = errors.Join(err, fmt.Errorf("its kernel says:\n  %s", strings.Join(bad, "\n  ")))
	}
	if err != nil {
		return fmt.Errorf("%w\nconsole: %s\n%s", err, console, complaint.String())
	}
	return nil
}

// follow reads the events of a machine until it is off. Nil: it came to its end.
func follow(listener net.Listener, tell func(job.Event)) error {
	conn, err := listener.Accept()
	if err != nil {
		return fmt.Errorf("the machine did not start: %w", err)
	}
	defer conn.Close()
	for lines := bufio.NewReaderSize(conn, 1<<20); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("the machine ended before its tests: %w", err)
		}
		var event job.Event
		switch err := json.Unmarshal(line, &event); {
		case err != nil:
			return fmt.Errorf("read %q from the machine: %w", line, err)
		case event.Error != "":
			return errors.New(event.Error)
		case event.Done:
			return nil
		}
		tell(event)
	}
}

// processorTime is what a process has had so far, in seconds; 0 if it is gone. Of a test on a machine that does other things as
// well it tells more than the clock.
func processorTime(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, found := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if err != nil || !found || len(fields) < 13 {
		return 0
	}
	const ticks = 100 // a second (proc(5): USER_HZ)
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / ticks
}

var alarm = regexp.MustCompile(`Kernel panic|BUG:|Oops|WARNING:|general protection|unable to handle|INFO: task|UBSAN|refcount_t`)

// alarming are the lines of a console that no kernel should print.
func alarming(console string) []string {
	text, err := os.ReadFile(console)
	if err != nil {
		return nil // there is a better error if it did not even start
	}
	var bad []string
	for _, line := range strings.Split(string(text), "\n") {
		if alarm.MatchString(line) {
			bad = append(bad, strings.TrimSpace(line))
		}
	}
	return bad
}
