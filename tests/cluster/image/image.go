// SPDX-License-Identifier: Apache-2.0

// Package image makes images without an engine: tarballs that `docker load` and `ctr images import` take.
package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"io"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Image is what there is of one: a program at a path, and what it needs beside it.
type Image struct {
	Name       string            // as nearlb:latest
	Arch       string            // as arm64; "": this machine's
	Program    string            // file of this machine
	Path       string            // where it is in the image
	Files      map[string]string // other files of this machine, by their path in the image
	Links      map[string]string // what symbolic links point to, by their path
	Entrypoint []string
	Command    []string
	Env        []string
	Labels     map[string]string
}

// Write makes the tarball of an image. The same files give the same bytes.
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
	config.OS, config.Architecture = "linux", cmp.Or(i.Arch, runtime.GOARCH)
	config.Config = v1.Config{Entrypoint: i.Entrypoint, Cmd: i.Command, Env: i.Env, Labels: i.Labels, WorkingDir: "/"}
	return mutate.ConfigFile(made, config)
}

// layer is the file system: files and links with their directories, of root, without a time.
func (i Image) layer() (v1.Layer, error) {
	files := map[string]string{clean(i.Path): i.Program}
	for path, source := range i.Files {
		files[clean(path)] = source
	}
	links := map[string]string{}
	for path, target := range i.Links {
		links[clean(path)] = target
	}
	var text bytes.Buffer
	out := layerWriter{tar.NewWriter(&text), map[string]bool{}}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if err := out.file(path, files[path]); err != nil {
			return nil, err
		}
	}
	for _, path := range slices.Sorted(maps.Keys(links)) {
		if err := out.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: path, Linkname: links[path], Mode: 0o777}); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil }
	return tarball.LayerFromOpener(opener, tarball.WithCompressionLevel(gzip.BestSpeed))
}

func clean(name string) string { return strings.TrimPrefix(path.Clean(name), "/") }

// layerWriter is a layer that is being written, and the directories that it has.
type layerWriter struct {
	*tar.Writer
	have map[string]bool
}

// add writes the header of what a name is, after those of its directories.
func (w layerWriter) add(h *tar.Header) error {
	for at, c := range h.Name {
		if dir := h.Name[:at] + "/"; c == '/' && !w.have[dir] {
			w.have[dir] = true
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}); err != nil {
				return err
			}
		}
	}
	return w.WriteHeader(h)
}

func (w layerWriter) file(name, source string) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	if err := w.add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}
