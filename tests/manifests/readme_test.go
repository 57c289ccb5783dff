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

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Directory(), "../README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What README has kubectl print is what --api-server takes.
func TestREADMEsCommandFindsTheAPIServers(t *testing.T) {
	match := regexp.MustCompile(`go-template='([^']+)'`).FindStringSubmatch(readme(t))
	if match == nil {
		t.Fatal("README has no command with a go-template")
	}
	for want, slice := range map[string]string{
		"https://192.0.2.1:6443 https://192.0.2.2:6443": "{addressType: IPv4, ports: [{name: https, port: 6443}], endpoints: [{addresses: [192.0.2.1]}, {addresses: [192.0.2.2]}]}",
		"https://[2001:db8::1]:443":                     "{addressType: IPv6, ports: [{name: https, port: 443}], endpoints: [{addresses: ['2001:db8::1']}]}",
	} {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(slice), &object); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := template.Must(template.New("").Parse(match[1])).Execute(&out, object); err != nil {
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

func TestEveryDirectoryThatREADMEInstallsFromIsThere(t *testing.T) {
	found := regexp.MustCompile(`manifests/[a-z0-9/-]+`).FindAllString(readme(t), -1)
	if len(found) == 0 {
		t.Error("README installs nothing")
	}
	for _, path := range found {
		if _, err := os.Stat(filepath.Join(Directory(), "..", path)); err != nil && path != "manifests/" {
			t.Error(err)
		}
	}
}
