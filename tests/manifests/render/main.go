// SPDX-License-Identifier: Apache-2.0

// Command render prints what manifests/ installs, for tests of other modules:
//
//	go run ./render overlays/trial
//	go run ./render helm '{"apiServers": ["https://192.0.2.1:6443"]}'
package main

import (
	"fmt"
	"os"

	"sigs.k8s.io/yaml"

	"github.com/nearlb/nearlb/tests/manifests"
)

func main() {
	if err := render(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func render(args []string) error {
	var text []byte
	var err error
	switch {
	case len(args) == 1 && args[0] != "helm":
		text, err = manifests.Kustomize(args[0])
	case len(args) == 2 && args[0] == "helm":
		values := map[string]any{}
		if err = yaml.Unmarshal([]byte(args[1]), &values); err == nil {
			text, _, err = manifests.Chart(values)
		}
	default:
		err = fmt.Errorf("want a directory of manifests/, or helm and values")
	}
	if err == nil {
		_, err = os.Stdout.Write(text)
	}
	return err
}
