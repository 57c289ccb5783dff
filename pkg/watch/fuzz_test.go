// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// FuzzLoad reads any text as a manifest: it is refused with one line that says why, or all that comes of it is sound.
func FuzzLoad(f *testing.F) {
	fixtures, err := filepath.Glob(filepath.Join("..", "..", "tests", "testdata", "objects", "*.yaml"))
	if err != nil || len(fixtures) == 0 {
		f.Fatalf("no fixtures: %v", err)
	}
	for _, path := range fixtures {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, text := range []string{
		webService + "\n---\n" + sliceOf("web-a", 2), jsonService("a") + jsonService("b"), nodeObject("n1", "topology.kubernetes.io/zone: a", "InternalIP 192.0.2.1"),
		`{"apiVersion":"v1","kind":"List","items":[` + jsonService("a") + `]}`, "{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: k}, spec: {cidrs: [10.96.0.0/16]}}",
		withSpec("type: LoadBalancer, clusterIP: 10.96.0.10, sessionAffinity: ClientIP, externalTrafficPolicy: Local, ports: [{port: 80, nodePort: 1}], loadBalancerSourceRanges: [10.0.0.0/8]"),
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		source, err := Load([]string{"-"}, bytes.NewReader(text), NodeConfig{Name: "n1"}, func(w string) {
			if strings.Contains(w, "\n") {
				t.Errorf("warning of several lines: %q", w)
			}
		})
		var refusal *ObjectError
		switch {
		case err == nil:
			sound(t, source, 1)
		case !errors.As(err, &refusal) || refusal.Problem == "" || strings.Contains(err.Error(), "\n"):
			t.Errorf("refused with %q", err)
		}
	})
}

// sound checks what decide and maps rely on. An object of an API server may have no port that can be served.
func sound(t *testing.T, source Source, ports int) {
	for _, name := range source.Services() {
		in, ok := source.Input(name)
		if !ok || in.Service.Name != name || len(in.Service.Ports) < ports || len(in.Service.ClusterIPs) > 2 {
			t.Errorf("%s: input is %+v, %v", name, in, ok)
		}
		if a := in.Service.Affinity; a < 0 || a > 24*time.Hour || a%time.Second != 0 {
			t.Errorf("%s: affinity %v", name, a)
		}
		keys := map[lb.PortKey]bool{}
		for _, p := range in.Service.Ports {
			key := lb.PortKey{Name: p.Name, Protocol: p.Protocol}
			if p.Port == 0 || p.Protocol == 0 || keys[key] {
				t.Errorf("%s: port %+v", name, p)
			}
			keys[key] = true
		}
		for _, e := range in.Endpoints {
			if !e.Address.IsValid() || e.Address.Port() == 0 || e.Address.Addr().Is4In6() || special(e.Address.Addr()) != "" || e.Slice == "" {
				t.Errorf("%s: endpoint %+v", name, e)
			}
		}
	}
}
