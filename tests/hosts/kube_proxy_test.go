// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/fakeapi"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// apiServer is what kube-proxy follows, where a cluster's nodes run that instead of agents.
type apiServer struct {
	*fakeapi.Server
	kubeconfig string
}

// serveAPI has an API server listen on a host of its own, until the test ends.
func (c *cluster) serveAPI() {
	c.t.Helper()
	host, err := c.AddOutside(lab.OutsideOptions{Name: "control"})
	if err != nil {
		c.t.Fatal(err)
	}
	var listener net.Listener
	if err := host.Do(func() (err error) {
		listener, err = net.Listen("tcp4", netip.AddrPortFrom(host.V4, 0).String())
		return err
	}); err != nil {
		c.t.Fatal(err)
	}
	c.api = &apiServer{fakeapi.New(fakeapi.Options{}), filepath.Join(c.Dir, "kubeconfig")}
	running := c.api.Start(listener)
	c.t.Cleanup(running.Close)
	if err := running.WriteKubeconfig(c.api.kubeconfig); err != nil {
		c.t.Fatal(err)
	}
}

// put gives the API server what a file of manifests has.
func (s *apiServer) put(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
		if err != nil {
			return err
		}
		s.Put(object)
	}
}

// startKubeProxy runs it on a node, in mode nftables, as a cluster has it.
func (c *cluster) startKubeProxy(node int) *lab.Process {
	c.t.Helper()
	n := c.nodes[node]
	process, err := n.Start("kube-proxy", []string{c.options.kubeProxy, "kube-proxy", "--kubeconfig=" + c.api.kubeconfig, "--proxy-mode=nftables",
		"--hostname-override=" + n.Name, "--cluster-cidr=10.244.0.0/16,fd24::/16", "--detect-local-mode=ClusterCIDR",
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--healthz-bind-address=127.0.0.1:20256", "--metrics-bind-address=127.0.0.1:20249"})
	if err != nil {
		c.t.Fatal(err)
	}
	return process
}
