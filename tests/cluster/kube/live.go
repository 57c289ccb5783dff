// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// restartSignals have a node end its service of that number, which then starts again.
var restartSignals = []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}

// live is a node's first process: it starts the services in their order, again when they end, and waits for every process whose parent
// is gone. It never returns but with an error before the first one started.
func (m machine) live() error {
	if err := m.openLogs(); err != nil {
		return err
	}
	if err := m.makeRoot(); err != nil {
		return err
	}
	n := &node{machine: m, running: map[int]chan<- struct{}{}, pids: make([]int, len(m.Services))}
	restart, ended := make(chan os.Signal, 8), make(chan os.Signal, 1)
	for i := range m.Services {
		signal.Notify(restart, restartSignals[i])
	}
	signal.Notify(ended, syscall.SIGCHLD)
	go n.startAll()
	for {
		select {
		case s := <-restart:
			n.end(s.(syscall.Signal))
		case <-ended:
			n.reap()
		}
	}
}

// logs are the services' files, opened while the machine's directories can be seen.
var logs = map[string]*os.File{}

func (m machine) openLogs() error {
	for _, s := range m.Services {
		file, err := os.OpenFile(filepath.Join(m.Logs, m.Name+"-"+s.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		logs[s.Name] = file
	}
	return nil
}

// node is what the first process knows of those it started.
type node struct {
	machine

	mu      sync.Mutex
	running map[int]chan<- struct{} // by pid: closed when it has ended
	pids    []int                   // of the services; 0: it does not run
}

func (n *node) startAll() {
	for i, s := range n.Services {
		go n.keep(i)
		for s.Socket != "" && !listens(s.Socket) {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// listens tells whether somebody listens on a Unix socket.
func listens(path string) bool {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// keep runs a service again and again.
func (n *node) keep(i int) {
	for {
		ended, err := n.start(i)
		if err != nil {
			fmt.Fprintf(logs[n.Services[i].Name], "start: %v\n", err)
		} else {
			<-ended
		}
		time.Sleep(500 * time.Millisecond) // so that one which cannot run leaves others the processor
	}
}

func (n *node) start(i int) (<-chan struct{}, error) {
	s := n.Services[i]
	out := logs[s.Name].Fd()
	n.mu.Lock() // so that its end is not seen before it is known
	defer n.mu.Unlock()
	program, err := exec.LookPath(s.Command[0])
	if err != nil {
		return nil, err
	}
	pid, err := syscall.ForkExec(program, s.Command, &syscall.ProcAttr{
		Dir: "/", Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=/root"}, Files: []uintptr{0, out, out},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	n.running[pid], n.pids[i] = ended, pid
	return ended, os.WriteFile(pidFile(s.Name), fmt.Append(nil, pid), 0o644)
}

// pidFile is where a node says which process a service is.
func pidFile(service string) string { return filepath.Join("/run", service+".pid") }

// end asks the service to end that a signal stands for.
func (n *node) end(s syscall.Signal) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, pid := range n.pids {
		if restartSignals[i] == s && pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
	}
}

// reap takes notice of all that ended.
func (n *node) reap() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		for i := range n.pids {
			if n.pids[i] == pid {
				n.pids[i] = 0
			}
		}
		if ended, ours := n.running[pid]; ours {
			close(ended)
			delete(n.running, pid)
		}
	}
}
