// SPDX-License-Identifier: Apache-2.0

// Command kubecluster runs a Kubernetes cluster on this machine until it is told to end: `make kube-up`, `make kube-down`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nearlb/nearlb/tests/cluster/control"
	"github.com/nearlb/nearlb/tests/cluster/kube"
)

// dir is where the cluster that runs says how to use it. There is one.
const dir = "/run/nearlb-kube"

const usage = `usage: kubecluster up [IMAGE.tar...]   start a cluster of three nodes that have these images
       kubecluster down                end it`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	var err error
	switch os.Args[1] {
	case "up":
		err = up(os.Args[2:])
	case "down":
		err = down()
	case "serve": // in the background
		err = serve(os.Args[2:])
	default:
		err = errors.New(usage)
	}
	var lacks missing
	switch {
	case errors.As(err, &lacks):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "kubecluster:", err)
		os.Exit(1)
	}
}

// missing is what the machine lacks.
type missing []string

func (m missing) Error() string {
	text := "this machine cannot run the cluster. It lacks:"
	for _, what := range m {
		text += "\n  " + what
	}
	return text
}

// up starts the cluster in the background, tells what it says, and returns when it works.
func up(images []string) error {
	if lacks := kube.Missing(); len(lacks) > 0 {
		return missing(lacks)
	}
	if pid := running(); pid != 0 {
		return fmt.Errorf("a cluster runs already, as process %d: make kube-down ends it", pid)
	}
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return err
	}
	if _, err := control.Program(); err != nil { // here, so that Ctrl-C ends it
		return err
	}
	for i, image := range images {
		var err error
		if images[i], err = filepath.Abs(image); err != nil {
			return err
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.Command("/proc/self/exe", append([]string{"serve"}, images...)...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	return follow(log.Name(), command.Process.Pid, ended)
}

// follow prints the log until the cluster says that it works, or has ended.
func follow(log string, pid int, ended <-chan error) error {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	printed := 0
	show := func() {
		text, _ := os.ReadFile(log)
		fmt.Print(string(text[printed:]))
		printed = len(text)
	}
	for {
		select {
		case err := <-ended:
			show()
			return errors.Join(errors.New("the cluster did not start"), err)
		case <-interrupted:
			_ = syscall.Kill(pid, syscall.SIGTERM)
			<-ended
			show()
			return errors.New("interrupted")
		case <-time.After(100 * time.Millisecond):
			ready := exists("ready")
			show()
			if ready {
				return nil
			}
		}
	}
}

func exists(name string) bool {
	_, err := os.Lstat(filepath.Join(dir, name))
	return err == nil
}

// serve is the cluster: it lives as long as this process.
func serve(images []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := record(); err != nil {
		return err
	}
	began := time.Now()
	cluster, err := kube.Start(ctx, kube.Options{Nodes: kube.ThreeNodes, Log: os.Stdout})
	if err != nil {
		return err
	}
	if err := offer(ctx, cluster, images, began); err != nil {
		return errors.Join(err, cluster.Close())
	}
	<-ctx.Done()
	return errors.Join(cluster.Close(), os.RemoveAll(dir))
}

// offer makes what people use of the cluster, and says so.
func offer(ctx context.Context, cluster *kube.Cluster, images []string, began time.Time) error {
	if err := cluster.Import(ctx, images...); err != nil {
		return err
	}
	program, err := control.Program()
	if err != nil {
		return err
	}
	config, err := os.ReadFile(cluster.Kubeconfig)
	if err != nil {
		return err
	}
	kubectl := fmt.Sprintf("#!/bin/sh\nKUBECONFIG=%s/kubeconfig exec '%s' kubectl \"$@\"\n", dir, program) // a flag would be in the way of plugins
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "kubeconfig"), config, 0o600),
		os.WriteFile(filepath.Join(dir, "kubectl"), []byte(kubectl), 0o700),
		os.Symlink(filepath.Join(cluster.Lab.Dir, "log"), filepath.Join(dir, "logs")),
	)
	if err != nil {
		return err
	}
	fmt.Printf("ready after %.0f s: n1 and n2 in zone a, n3 in zone b; no Service is served by anybody yet\n", time.Since(began).Seconds())
	fmt.Printf("  export KUBECONFIG=%s/kubeconfig\n  alias kubectl=%s/kubectl       # one of the cluster's version\n", dir, dir)
	fmt.Printf("  ls %s/logs                     # what its parts say\n  make kube-down                            # ends it\n", dir)
	return os.WriteFile(filepath.Join(dir, "ready"), nil, 0o600)
}

// down ends the cluster that runs. None is no error: then what a killed one left is removed.
func down() error {
	pid := running()
	if pid == 0 {
		fmt.Println("no cluster runs")
		kube.RemoveStale()
		return os.RemoveAll(dir)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	if err := process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	for limit := time.Now().Add(2 * time.Minute); running() == pid; {
		if time.Now().After(limit) {
			return fmt.Errorf("process %d does not end: see %s/log", pid, dir)
		}
		time.Sleep(50 * time.Millisecond)
	}
	kube.RemoveStale()
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(dir)
	}
	return nil
}
