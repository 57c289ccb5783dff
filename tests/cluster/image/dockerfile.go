// SPDX-License-Identifier: Apache-2.0

package image

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// FromDockerfile is the image of manifests/Dockerfile around a program that was built as that builds it. What the file says beside
// that is an error: then this image is another one.
func FromDockerfile(file, name, program, version string) (Image, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Image{}, err
	}
	i := Image{Name: name, Program: program, Labels: map[string]string{}}
	last := false // stage: the image's
	for _, line := range instructions(string(text)) {
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case word == "FROM":
			last = rest == "scratch"
		case !last || word == "ARG":
		case word == "LABEL":
			err = i.label(rest, version)
		case word == "COPY":
			from, to, found := strings.Cut(strings.TrimPrefix(rest, "--from=build "), " ")
			if i.Path = to; !found || from != "/src/bin/nearlb" || i.Path == "" {
				err = fmt.Errorf("COPY %s is more than one program", rest)
			}
		case word == "ENTRYPOINT":
			err = json.Unmarshal([]byte(rest), &i.Entrypoint)
		default:
			err = fmt.Errorf("%s is not known here", line)
		}
		if err != nil {
			return Image{}, fmt.Errorf("read %s: %w", file, err)
		}
	}
	if i.Path == "" || len(i.Entrypoint) == 0 {
		return Image{}, fmt.Errorf("read %s: it makes no image of a program", file)
	}
	return i, nil
}

// instructions are the lines of a Dockerfile, continued ones as one, without comments.
func instructions(text string) (lines []string) {
	text = strings.ReplaceAll(text, "\\\n", " ")
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(line), " "); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

var pair = regexp.MustCompile(`(\S+?)="([^"]*)"`)

func (i Image) label(text, version string) error {
	for _, match := range pair.FindAllStringSubmatch(text, -1) {
		i.Labels[match[1]] = strings.ReplaceAll(match[2], "$VERSION", version)
	}
	if rest := strings.TrimSpace(pair.ReplaceAllString(text, "")); rest != "" {
		return fmt.Errorf("LABEL has %q", rest)
	}
	return nil
}
