// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// access passes connections to a port of this machine's loopback address on to the API server, whose network this machine does not have.
type access struct {
	listener net.Listener
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	to       string

	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
}

// open makes the API server reachable for this machine's programs, and the file that says how.
func (c *Cluster) open() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.access = &access{listener: listener, dial: c.Plane.Config().Dial, to: c.Plane.Address().String(), open: map[net.Conn]bool{}}
	go c.access.serve()
	c.Kubeconfig = filepath.Join(c.Lab.Dir, "kubeconfig")
	return c.writeKubeconfig("https://" + listener.Addr().String())
}

// writeKubeconfig makes a file that needs no others.
func (c *Cluster) writeKubeconfig(url string) error {
	parts := map[string][]byte{}
	for _, name := range []string{"ca.crt", "admin.crt", "admin.key"} {
		text, err := os.ReadFile(c.Plane.File(name))
		if err != nil {
			return err
		}
		parts[name] = text
	}
	const name = "nearlb-kube"
	return clientcmd.WriteToFile(api.Config{
		Clusters:       map[string]*api.Cluster{name: {Server: url, CertificateAuthorityData: parts["ca.crt"]}},
		AuthInfos:      map[string]*api.AuthInfo{name: {ClientCertificateData: parts["admin.crt"], ClientKeyData: parts["admin.key"]}},
		Contexts:       map[string]*api.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, c.Kubeconfig)
}

func (a *access) serve() {
	for {
		client, err := a.listener.Accept()
		if err != nil {
			return
		}
		go a.pass(client)
	}
}

// pass copies both ways until both ends have said all.
func (a *access) pass(client net.Conn) {
	if !a.keep(client) {
		return
	}
	defer a.drop(client)
	server, err := a.dial(context.Background(), "tcp", a.to)
	if err != nil || !a.keep(server) {
		return
	}
	defer a.drop(server)
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = way[0].(*net.TCPConn).CloseWrite()
		})
	}
	both.Wait()
}

// keep has a connection closed at the end; false: that has come.
func (a *access) keep(conn net.Conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		_ = conn.Close()
		return false
	}
	a.open[conn] = true
	return true
}

func (a *access) drop(conn net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, conn)
	_ = conn.Close()
}

func (a *access) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	a.closed = true
	err := a.listener.Close()
	for conn := range a.open {
		_ = conn.Close()
	}
	return err
}
