// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Node is a node of the lab with a containerd and a kubelet of its own, in namespaces of its own.
type Node struct {
	*lab.Node
	process *lab.Process // the parent of the first one
	first   int          // pid of the first process, as this machine counts
}

// startNode starts a node's services. They may not work yet.
func (c *Cluster) startNode(of *lab.Node) (*Node, error) {
	n := &Node{Node: of}
	c.Nodes = append(c.Nodes, n)
	root := filepath.Join(c.Lab.Dir, of.Name)
	if err := os.Mkdir(root, 0o700); err != nil {
		return nil, err
	}
	files, err := c.files(of)
	if err != nil {
		return nil, err
	}
	m := machine{
		Name: of.Name, Root: root, Logs: filepath.Join(c.Lab.Dir, "log"), Cgroup: c.cgroup(of.Name), Hierarchies: c.hierarchies,
		Binds: map[string]string{kubernetesFile: c.program}, Files: files, Services: services(of),
	}
	if c.network.Given != nil {
		maps.Copy(m.Binds, c.network.Given.plugins())
	}
	loans, err := makeCgroups(m.Hierarchies, m.Cgroup)
	c.borrow(loans)
	if err != nil {
		return nil, err
	}
	text, err := marshal(m)
	if err != nil {
		return nil, err
	}
	if n.process, err = of.Start("node", []string{"/proc/self/exe"}, variable+"="+text); err != nil {
		return nil, err
	}
	return n, n.awaitFirst()
}

// awaitFirst finds the first process when it has left this machine's root, which is when others may enter the node.
func (n *Node) awaitFirst() error {
	err := lab.Await(patience, func() bool {
		select {
		case <-n.process.Ended():
			return true
		default:
		}
		children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.process.PID()))
		for _, file := range children {
			text, _ := os.ReadFile(file)
			if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
				n.first = pid
			}
		}
		return n.first != 0 && n.pid("containerd") != 0
	})
	select {
	case <-n.process.Ended():
		text, _ := os.ReadFile(n.process.Log)
		return fmt.Errorf("start node %s: %s", n.Name, text)
	default:
		return err
	}
}

// Path is a path of the node as this machine has it.
func (n *Node) Path(path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", n.first), path)
}

// pid is a service's number as the node counts; 0: it did not start yet.
func (n *Node) pid(service string) int {
	text, _ := os.ReadFile(n.Path(pidFile(service)))
	pid, _ := strconv.Atoi(string(text))
	return pid
}

// Run runs a command on the node, as its root, and gives what it printed. The error has what it said.
func (n *Node) Run(ctx context.Context, in io.Reader, argv ...string) (string, error) {
	enter := []string{"--target", strconv.Itoa(n.first), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"}
	command := exec.CommandContext(ctx, "nsenter", append(enter, argv...)...)
	var out, said bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = in, &out, &said
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("run %v on %s: %w: %s", argv, n.Name, err, said.String())
	}
	return out.String(), nil
}

// Import gives the node's runtime the images of a tarball.
func (n *Node) Import(ctx context.Context, tarball string) error {
	file, err := os.Open(tarball)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = n.Run(ctx, file, "ctr", "--address", containerdSocket, "--namespace", "k8s.io", "images", "import", "-")
	return err
}

func (n *Node) importAll(ctx context.Context, tarballs []string) error {
	if err := n.awaitRuntime(ctx); err != nil {
		return err
	}
	for _, tarball := range tarballs {
		if err := n.Import(ctx, tarball); err != nil {
			return err
		}
	}
	return nil
}

// RestartKubelet and RestartContainerd end a service, and wait until it runs again. What it looks after goes on meanwhile.
func (n *Node) RestartKubelet() error { return n.restart(1, "kubelet") }

// RestartContainerd: one that ends while it looks for the containers which it had takes them for dead.
func (n *Node) RestartContainerd() error {
	if err := n.restart(0, "containerd"); err != nil {
		return err
	}
	return n.awaitRuntime(context.Background())
}

func (n *Node) restart(number int, name string) error {
	before := n.pid(name)
	if err := syscall.Kill(n.first, restartSignals[number]); err != nil {
		return fmt.Errorf("restart %s of %s: %w", name, n.Name, err)
	}
	if err := lab.Await(patience, func() bool { pid := n.pid(name); return pid != 0 && pid != before }); err != nil {
		return fmt.Errorf("restart %s of %s: %w", name, n.Name, err)
	}
	return nil
}

// patience is how long a part may take on a machine that has better things to do.
const patience = 3 * time.Minute
