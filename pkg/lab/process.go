// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Process is a program that runs in a host's network namespace and in the lab's mount namespace.
type Process struct {
	Log string // file with its standard output and error

	on      *Namespace
	command *exec.Cmd
	ended   chan struct{}
	err     error // valid when ended is closed
}

// Start runs a program on the node. It dies with this process, in whatever way that ends.
func (n *Node) Start(name string, argv []string, env ...string) (*Process, error) {
	return n.lab.start(n.Namespace, name, argv, env)
}

// Start runs a program in the pod, as Node.Start does. It lives as long as the lab.
func (p *Pod) Start(name string, argv []string, env ...string) (*Process, error) {
	return p.Node.lab.start(p.Namespace, name, argv, env)
}

// Start runs a program on the host outside, as Node.Start does.
func (o *Outside) Start(name string, argv []string, env ...string) (*Process, error) {
	return o.lab.start(o.Namespace, name, argv, env)
}

func (l *Lab) start(on *Namespace, name string, argv, env []string) (*Process, error) {
	p := &Process{on: on, Log: filepath.Join(l.Dir, "log", on.Name+"-"+name+".log"), ended: make(chan struct{})}
	out, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.command = exec.Command(argv[0], argv[1:]...)
	p.command.Stdout, p.command.Stderr = out, out
	p.command.Env = append(os.Environ(), env...)
	p.command.Dir = l.Dir
	// A group of its own: Ctrl-C on a terminal is for the lab to act on. The signal at the parent's death is tied to the
	// thread that started the process, which therefore waits for it.
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

	started := make(chan error, 1)
	go func() { _ = onThread(func() error { p.run(l.mounts, on, started); return nil }) }()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s on %s: %w", name, on.Name, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.processes = append(l.processes, p)
	return p, nil
}

// run starts the process on the calling thread, which it moves, and waits for its end.
func (p *Process) run(in *mounts, on *Namespace, started chan<- error) {
	err := errors.Join(in.enter(), on.enter())
	if err == nil {
		err = p.command.Start()
	}
	started <- err
	if err == nil {
		p.err = p.command.Wait()
	}
	close(p.ended)
}

// PID is the process's number.
func (p *Process) PID() int { return p.command.Process.Pid }

// Ended is closed when the process is gone.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// ExitCode is the exit status of a process that ended; -1 of one that runs or that a signal ended.
func (p *Process) ExitCode() int {
	select {
	case <-p.ended:
		return p.command.ProcessState.ExitCode()
	default:
		return -1
	}
}

// Kill ends the process by SIGKILL and waits for its end. A process that ended already is no error.
func (p *Process) Kill() error {
	return p.end(syscall.SIGKILL, nil)
}

// Stop asks the process to end by SIGTERM and waits. The error says how it ended, or that it did not.
func (p *Process) Stop() error {
	if err := p.end(syscall.SIGTERM, time.After(time.Minute)); err != nil {
		return err
	}
	return p.err
}

func (p *Process) end(signal syscall.Signal, late <-chan time.Time) error {
	select {
	case <-p.ended:
		return nil
	default:
	}
	// To its process group, which is its own: what it started goes with it.
	if err := syscall.Kill(-p.PID(), signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-late:
		return fmt.Errorf("stop process %d: still there a minute after %s", p.PID(), signal)
	}
}
