// SPDX-License-Identifier: Apache-2.0

package release

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"
)

// The parts of CycloneDX 1.6 (ECMA-424) that are used.
type (
	bill struct {
		Format     string      `json:"bomFormat"`
		Spec       string      `json:"specVersion"`
		Version    int         `json:"version"`
		Metadata   metadata    `json:"metadata"`
		Components []component `json:"components"`
	}
	metadata struct {
		Component component `json:"component"`
	}
	component struct {
		Type    string `json:"type"`
		Ref     string `json:"bom-ref"`
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
		URL     string `json:"purl"`
	}
)

// Contents lists, as CycloneDX, the modules that a program was linked from, as the linker wrote them into it, and Go itself.
func Contents(program, version string) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("read what %s was built from: %w", program, err)
	}
	all := bill{Format: "CycloneDX", Spec: "1.6", Version: 1,
		Metadata:   metadata{module("application", info.Main.Path, version)},
		Components: []component{module("library", "std", strings.TrimPrefix(strings.Fields(info.GoVersion)[0], "go"))}}
	for _, dependency := range info.Deps {
		all.Components = append(all.Components, moduleOf(dependency))
	}
	text, err := json.MarshalIndent(all, "", "  ")
	return append(text, '\n'), err
}

func moduleOf(m *debug.Module) component {
	if m.Replace != nil {
		m = m.Replace
	}
	return module("library", m.Path, m.Version)
}

// module names one as package URLs do: pkg:golang/PATH@VERSION, with the path in lower case.
func module(kind, path, version string) component {
	url := "pkg:golang/" + strings.ToLower(path)
	if version != "" {
		url += "@" + strings.ReplaceAll(version, "+", "%2B")
	}
	return component{Type: kind, Ref: url, Name: path, Version: version, URL: url}
}
