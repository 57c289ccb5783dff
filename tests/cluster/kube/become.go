// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// machine is what a process is told that becomes a node's first.
type machine struct {
	Name        string
	Root        string            // an empty directory
	Logs        string            // directory
	Cgroup      string            // its name in every hierarchy
	Hierarchies []hierarchy       // of the cgroups
	Binds       map[string]string // directories and programs of this machine that the node has, read-only, by their path there
	Files       map[string]string // their contents, by path
	Services    []service
	Inside      bool // it is in its namespaces already
}

// service is a program that a node runs, again when it ends.
type service struct {
	Name    string
	Command []string
	Socket  string // the program works when somebody listens there; "": at once. The next one starts then
}

// variable in the environment has a program that imports this package become a node, before anything else of it runs.
const variable = "NEARLB_KUBE_NODE"

func init() {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	var m machine
	err := json.Unmarshal([]byte(text), &m)
	switch {
	case err != nil:
	case m.Inside:
		err = m.live()
	default:
		err = m.enter()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "start node %s: %v\n", m.Name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// enter starts the node's first process in namespaces of its own, beside those of the network, which it has, and waits for its end.
// When it dies, the kernel ends the node with all that runs there.
func (m machine) enter() error {
	runtime.LockOSThread() // the signal at the parent's death is tied to the thread
	if err := joinCgroups(m.Hierarchies, m.Cgroup); err != nil {
		return err
	}
	m.Inside = true
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	first := exec.Command("/proc/self/exe")
	first.Env = []string{variable + "=" + string(text), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	first.Stdout, first.Stderr = os.Stdout, os.Stderr
	first.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWCGROUP,
		Pdeathsig:  syscall.SIGKILL,
	}
	return first.Run()
}
