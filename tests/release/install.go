// SPDX-License-Identifier: Apache-2.0

package release

import (
	"fmt"
	"regexp"
	"strings"
)

var semantic = regexp.MustCompile(`^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$`)

// CheckVersion refuses what is no version of a release: a chart and krew want three numbers.
func CheckVersion(version string) error {
	if !semantic.MatchString(version) {
		return fmt.Errorf("version %q: want one as v1.2.3: a tag of this commit, or VERSION=v1.2.3", version)
	}
	return nil
}

// Chart sets the version and the image of the files of manifests/helm/nearlb.
func Chart(files map[string]File, version, image string) error {
	return edit(files,
		change{"nearlb/Chart.yaml", `(?m)^version: .*$`, "version: " + strings.TrimPrefix(version, "v")},
		change{"nearlb/Chart.yaml", `(?m)^appVersion: .*$`, "appVersion: " + version},
		change{"nearlb/values.yaml", `(?m)^  repository: nearlb$`, "  repository: " + image})
}

// Manifests sets the image of the files of manifests/, at the one place where the kustomizations name it.
func Manifests(files map[string]File, version, image string) error {
	return edit(files, change{"manifests/base/kustomization.yaml", `(?m)^  newName: nearlb\n  newTag: latest$`, "  newName: " + image + "\n  newTag: " + version})
}

// Krew is the manifest of the plugin: archives are at url/name, and sums are by that name.
func Krew(template, version, url string, sums map[string]string) (string, error) {
	var platforms strings.Builder
	for _, p := range PluginPlatforms {
		archive := p.Archive("kubectl-nearlb", version)
		if sums[archive] == "" {
			return "", fmt.Errorf("there is no sum of %s", archive)
		}
		fmt.Fprintf(&platforms, "  - selector:\n      matchLabels:\n        os: %s\n        arch: %s\n    uri: %s/%s\n    sha256: %s\n    bin: %s\n",
			p.OS, p.Arch, url, archive, sums[archive], p.Program("kubectl-nearlb"))
	}
	files := map[string]File{"krew.yaml": {Content: []byte(template)}}
	err := edit(files, change{"krew.yaml", `@VERSION@`, version}, change{"krew.yaml", `(?m)^@PLATFORMS@\n`, platforms.String()})
	return string(files["krew.yaml"].Content), err
}

// change is of one place of a file.
type change struct{ file, place, to string }

func edit(files map[string]File, changes ...change) error {
	for _, c := range changes {
		before := files[c.file]
		place := regexp.MustCompile(c.place)
		if n := len(place.FindAll(before.Content, -1)); n != 1 {
			return fmt.Errorf("%s has %d places like %s, want one", c.file, n, c.place)
		}
		before.Content = place.ReplaceAllLiteral(before.Content, []byte(c.to))
		files[c.file] = before
	}
	return nil
}

// Platform is a system and an architecture that a program is built for.
type Platform struct{ OS, Arch string }

// Platforms of the agent's program, and of the plugin's.
var (
	AgentPlatforms  = []Platform{{"linux", "amd64"}, {"linux", "arm64"}}
	PluginPlatforms = []Platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"}}
)

// Program is what its file is called.
func (p Platform) Program(name string) string {
	if p.OS == "windows" {
		return name + ".exe"
	}
	return name
}

// Archive is what the archive of a program is called.
func (p Platform) Archive(name, version string) string {
	return fmt.Sprintf("%s_%s_%s_%s.tar.gz", name, version, p.OS, p.Arch)
}
