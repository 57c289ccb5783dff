// SPDX-License-Identifier: Apache-2.0

// Package manifests renders what manifests/ offers to install, as kubectl apply -k and helm template do. It is a module of its
// own for the sake of their libraries; other modules run its command (render).
package manifests

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/tests/repository"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Directory is manifests/.
func Directory() string {
	root, err := repository.Root()
	if err != nil {
		panic(err) // a test runs in its package's directory
	}
	return filepath.Join(root, "manifests")
}

// Overlays are the kustomizations that users apply, by their directory.
func Overlays() []string {
	return []string{"base", "overlays/replace-kube-proxy", "overlays/trial", "overlays/dns"}
}

// Kustomize is `kubectl kustomize` of a directory, in manifests/ unless its path is absolute.
func Kustomize(dir string) ([]byte, error) {
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(Directory(), dir)
	}
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("kustomize %s: %w", dir, err)
	}
	return all.AsYaml()
}

// Chart is `helm template nearlb manifests/helm/nearlb --namespace kube-system` with values, held to the chart's schema; and its
// notes.
func Chart(values map[string]any) (rendered []byte, notes string, err error) {
	chart, err := loader.LoadDir(filepath.Join(Directory(), "helm", "nearlb"))
	if err != nil {
		return nil, "", err
	}
	release := common.ReleaseOptions{Name: "nearlb", Namespace: "kube-system", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, values, release, nil)
	if err != nil {
		return nil, "", err
	}
	files, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		return nil, "", err
	}
	var documents []string
	for _, name := range slices.SortedFunc(maps.Keys(files), func(a, b string) int { return cmp.Compare(b, a) }) {
		switch text := strings.TrimSpace(files[name]); {
		case strings.HasSuffix(name, "NOTES.txt"):
			notes = text
		case text != "" && !strings.HasPrefix(filepath.Base(name), "_"):
			documents = append(documents, text)
		}
	}
	return []byte(strings.Join(documents, "\n---\n") + "\n"), notes, nil
}
