// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"

	"github.com/nearlb/nearlb/tests/release"
)

const (
	releasedImage = "registry.example.com/nearlb"
	digest        = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// Helm reads the chart of a release, and it installs that release's image.
func TestTheChartOfAReleaseInstallsItsImage(t *testing.T) {
	files, err := release.Tree(filepath.Join(Directory(), "helm", "nearlb"), "nearlb")
	if err == nil {
		err = release.Chart(files, "v1.2.3", releasedImage)
	}
	var archive bytes.Buffer
	if err == nil {
		err = release.Archive(&archive, files)
	}
	if err != nil {
		t.Fatal(err)
	}
	for want, v := range map[string]values{
		releasedImage + ":v1.2.3":    {},
		releasedImage + ":v9":        {"image": values{"tag": "v9"}},
		releasedImage + "@" + digest: {"image": values{"tag": "v9", "digest": digest}},
	} {
		chart, err := loader.LoadArchive(bytes.NewReader(archive.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		if chart.Metadata.Version != "1.2.3" {
			t.Errorf("version %s", chart.Metadata.Version)
		}
		all, err := util.ToRenderValues(chart, v, common.ReleaseOptions{Name: "nearlb", Namespace: "kube-system"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		rendered, err := engine.Engine{Strict: true}.Render(chart, all)
		if err != nil {
			t.Fatal(err)
		}
		checkImages(t, rendered["nearlb/templates/daemonset.yaml"], want)
	}
}

// The manifests of a release install its image by every overlay; so does one's own overlay by a digest.
func TestTheManifestsOfAReleaseInstallItsImage(t *testing.T) {
	dir := t.TempDir()
	files, err := release.Tree(Directory(), "manifests")
	if err == nil {
		err = release.Manifests(files, "v1.2.3", releasedImage)
	}
	if err != nil {
		t.Fatal(err)
	}
	files["manifests/overlays/mine/kustomization.yaml"] = release.File{Content: []byte("resources: [../trial]\nimages: [{name: " + releasedImage + ", digest: '" + digest + "'}]\n")}
	for name, file := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, file.Content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for overlay, want := range map[string]string{"base": ":v1.2.3", "overlays/trial": ":v1.2.3", "overlays/dns": ":v1.2.3", "overlays/mine": "@" + digest} {
		rendered, err := Kustomize(filepath.Join(dir, "manifests", overlay))
		if err != nil {
			t.Fatal(err)
		}
		checkImages(t, string(rendered), releasedImage+want)
	}
}

func checkImages(t *testing.T, rendered, want string) {
	t.Helper()
	images := 0
	for line := range strings.Lines(rendered) {
		if _, image, found := strings.Cut(line, " image: "); found {
			if images++; strings.Trim(image, "\" \n") != want {
				t.Errorf("image %s, want %s", image, want)
			}
		}
	}
	if images != 2 {
		t.Errorf("%d containers have an image, want 2", images)
	}
}
