// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"sigs.k8s.io/yaml"

	"github.com/nearlb/nearlb/pkg/watch"
)

// pages say how to install.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, page := range []string{"README.md", "docs/install.md"} {
		text, err := os.ReadFile(filepath.Join(Directory(), "..", page))
		if err != nil {
			t.Fatal(err)
		}
		all[page] = string(text)
	}
	return all
}

// What the pages have kubectl print is what --api-server takes.
func TestThePagesCommandFindsTheAPIServers(t *testing.T) {
	for page, text := range pages(t) {
		match := regexp.MustCompile(`go-template='([^']+)'`).FindStringSubmatch(text)
		if match == nil {
			t.Fatalf("%s has no command with a go-template", page)
		}
		testTemplate(t, match[1])
	}
}

func testTemplate(t *testing.T, printed string) {
	for want, slice := range map[string]string{
		"https://192.0.2.1:6443 https://192.0.2.2:6443": "{addressType: IPv4, ports: [{name: https, port: 6443}], endpoints: [{addresses: [192.0.2.1]}, {addresses: [192.0.2.2]}]}",
		"https://[2001:db8::1]:443":                     "{addressType: IPv6, ports: [{name: https, port: 443}], endpoints: [{addresses: ['2001:db8::1']}]}",
	} {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(slice), &object); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := template.Must(template.New("").Parse(printed)).Execute(&out, object); err != nil {
			t.Fatal(err)
		}
		servers, err := watch.ParseServers(strings.Split(out.String(), ","))
		var got []string
		for _, s := range servers {
			got = append(got, s.String())
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s prints %q: %v, %v", slice, out.String(), got, err)
		}
	}
}

func TestEveryDirectoryThatThePagesInstallFromIsThere(t *testing.T) {
	for page, text := range pages(t) {
		found := regexp.MustCompile(`manifests/[a-z0-9/-]+`).FindAllString(text, -1)
		if len(found) == 0 {
			t.Errorf("%s installs nothing", page)
		}
		for _, path := range found {
			if _, err := os.Stat(filepath.Join(Directory(), "..", path)); err != nil && path != "manifests/" {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

// An API server that has a name is found before anybody serves the cluster's DNS: on a node that has just started, without kube-proxy.
func TestTheAgentAsksTheNodesDNSForTheAPIServer(t *testing.T) {
	for _, dir := range Overlays() {
		rendered, err := Kustomize(dir)
		if err != nil {
			t.Fatal(err)
		}
		testDNSPolicy(t, dir, rendered)
	}
	rendered, _, err := Chart(nil)
	if err != nil {
		t.Fatal(err)
	}
	testDNSPolicy(t, "the chart", rendered)
}

func testDNSPolicy(t *testing.T, of string, rendered []byte) {
	t.Helper()
	policies := regexp.MustCompile(`(?m)^ +dnsPolicy: (\w+)`).FindAllSubmatch(rendered, -1)
	if len(policies) != 1 || string(policies[0][1]) != "Default" {
		t.Errorf("%s: dnsPolicy %q, want Default once", of, policies)
	}
}
