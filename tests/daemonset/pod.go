// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/repository"
)

// Pod is what a kubelet adds to the manifest.
type Pod struct {
	Program string            // the nearlb binary: the image
	Account string            // directory with the ServiceAccount's token and ca.crt; "": not mounted
	Config  map[string]string // data of the ConfigMap nearlb-config; nil: there is none
	Env     []string          // KUBERNETES_SERVICE_HOST and _PORT
	Calls   []uint32          // numbers of the system calls that the seccomp profile allows; nil: no profile
	Extra   map[string]string // further directories of the container, by path, to read only
	Host    map[string]string // directories that stand for the host's, by path; those of the DaemonSet's volumes must be there
}

// configDir is the ConfigMap's, beside what stands for the host's /run/nearlb.
func (p Pod) configDir() string { return p.Host["/run/nearlb"] + "-config" }

// WriteConfig brings the files that containers see up to date with Config, as a kubelet does some time after a change.
func (p Pod) WriteConfig() error {
	if err := os.MkdirAll(p.configDir(), 0o755); err != nil {
		return err
	}
	files, err := os.ReadDir(p.configDir())
	if err != nil {
		return err
	}
	for _, file := range files {
		if _, stays := p.Config[file.Name()]; !stays {
			err = errors.Join(err, os.Remove(filepath.Join(p.configDir(), file.Name())))
		}
	}
	for key, value := range p.Config {
		err = errors.Join(err, os.WriteFile(filepath.Join(p.configDir(), key), []byte(value), 0o600))
	}
	return err
}

// PinPath is where agents pin by default, as seen from their container.
const PinPath = "/sys/fs/bpf/nearlb"

// Program builds nearlb as the image has it, once, in a directory that outlives the test.
func Program() (string, error) { return build() }

var build = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "nearlb-test", "nearlb")
	made := fmt.Sprintf("%s.%d", path, os.Getpid()) // others may build it, too
	root, err := repository.Root()
	if err != nil {
		return "", err
	}
	cmd := exec.Command("make", "build", "BIN="+made, "TAGS=image", "VERSION=test")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make build: %w\n%s", err, out)
	}
	return path, os.Rename(made, path)
})

// Hostlike makes directories that stand for a node's own: its bpffs is a part of the lab's, its cgroup hierarchy the node's.
func Hostlike(l *lab.Lab, n *lab.Node) (map[string]string, error) {
	bpf, run := filepath.Join(l.BPFDir(), n.Name+"-host"), filepath.Join(l.LockDir(), n.Name+"-host")
	if err := l.Mounted(func() error { return os.MkdirAll(bpf, 0o700) }); err != nil {
		return nil, err
	}
	return map[string]string{"/sys/fs/bpf": bpf, "/run/nearlb": run, "/sys/fs/cgroup": n.Cgroup()}, os.MkdirAll(run, 0o755)
}

// Start runs the container's own command on the node.
func (s Set) Start(n *lab.Node, pod Pod) (*lab.Process, error) {
	c, err := s.container(n.Name, pod, s.Agent.Args)
	if err != nil {
		return nil, err
	}
	return c.start(n, "agent")
}

// Exec runs another command of the program in the container, and gives what it printed.
func (s Set) Exec(n *lab.Node, pod Pod, args ...string) (string, error) {
	c, err := s.container(n.Name, pod, args)
	if err != nil {
		return "", err
	}
	p, err := c.start(n, "exec")
	if err != nil {
		return "", err
	}
	<-p.Ended()
	out, err := os.ReadFile(p.Log)
	if err == nil {
		err = os.Remove(p.Log)
	}
	if p.Stop() != nil {
		return string(out), fmt.Errorf("exec %v: %w", args, p.Stop())
	}
	return string(out), err
}

func (s Set) container(node string, pod Pod, args []string) (container, error) {
	env, err := s.environment(node, pod.Config)
	if err != nil {
		return container{}, err
	}
	capabilities, err := s.Capabilities()
	if err != nil {
		return container{}, err
	}
	mounts, err := s.mounts()
	if err != nil {
		return container{}, err
	}
	if err := pod.WriteConfig(); err != nil {
		return container{}, err
	}
	for i := range mounts {
		if mounts[i].Host == configVolume {
			mounts[i].Host = pod.configDir()
			continue
		}
		there, found := pod.Host[mounts[i].Host]
		if !found {
			return container{}, fmt.Errorf("mount %s: nothing stands for the host's %s", mounts[i].Path, mounts[i].Host)
		}
		mounts[i].Host = there
	}
	for path, host := range pod.Extra {
		mounts = append(mounts, mount{Host: host, Path: path, ReadOnly: true})
	}
	if pod.Account != "" {
		mounts = append(mounts, mount{Host: pod.Account, Path: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true})
	}
	security := s.Agent.SecurityContext
	return container{
		Program: pod.Program, Calls: pod.Calls, Args: args, Env: append(env, pod.Env...), Capabilities: capabilities, Mounts: mounts,
		NoNewPrivileges: security.AllowPrivilegeEscalation != nil && !*security.AllowPrivilegeEscalation,
		ReadOnly:        security.ReadOnlyRootFilesystem != nil && *security.ReadOnlyRootFilesystem,
	}, nil
}

// start runs the test binary again, which becomes the container (container.go).
func (c container) start(n *lab.Node, name string) (*lab.Process, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return n.Start(name, []string{"/proc/self/exe"}, variable+"="+string(text))
}
