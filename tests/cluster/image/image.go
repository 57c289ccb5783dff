// SPDX-License-Identifier: Apache-2.0

// Package image makes images of single programs without an engine: tarballs that `docker load` and `ctr images import` take.
package image

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Image is what there is of one: a program at a path, alone in its file system.
type Image struct {
	Name       string // as nearlb:latest
	Program    string // file of this machine
	Path       string // where it is in the image
	Entrypoint []string
	Command    []string
	Labels     map[string]string
}

// Write makes the tarball of an image for this machine's architecture. The same program gives the same bytes.
func (i Image) Write(file string) error {
	tag, err := name.NewTag(i.Name)
	if err != nil {
		return err
	}
	made, err := i.make()
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file, tag, made)
}

func (i Image) make() (v1.Image, error) {
	layer, err := i.layer()
	if err != nil {
		return nil, err
	}
	made, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := made.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Entrypoint: i.Entrypoint, Cmd: i.Command, Labels: i.Labels, WorkingDir: "/"}
	return mutate.ConfigFile(made, config)
}

// layer is the file system: the program and its directories, of root, without a time.
func (i Image) layer() (v1.Layer, error) {
	program, err := os.ReadFile(i.Program)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	out := tar.NewWriter(&text)
	below := strings.Trim(i.Path, "/")
	for at, c := range below {
		if c == '/' {
			if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: below[:at+1], Mode: 0o755}); err != nil {
				return nil, err
			}
		}
	}
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Clean(below), Mode: 0o755, Size: int64(len(program))}); err != nil {
		return nil, err
	}
	if _, err := out.Write(program); err != nil {
		return nil, err
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil })
}
