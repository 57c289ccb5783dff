// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/fakeapi"
	"github.com/nearlb/nearlb/tests/rig"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
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
	c.api = &apiServer{fakeapi.New(fakeapi.Options{}), filepath.Join(c.Dir, "kubeconfig")}
	running, err := rig.ServeAPI(c.api.Server, host, c.api.kubeconfig)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(running.Close)
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
		object, _, err := serializer.NewCodecFactory(fakeapi.Types).UniversalDeserializer().Decode(document, nil, nil)
		if err != nil {
			return err
		}
		s.Put(object)
	}
}
