// SPDX-License-Identifier: Apache-2.0

// Package release makes what a release is made of: archives of programs, charts and manifests, their sums, lists of what programs contain, and the manifest for krew.
// The same inputs make the same bytes, on any machine and at any time.
package release

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// File is one of an archive.
type File struct {
	Content []byte
	Program bool // to be run
}

// Archive writes a .tar.gz of files, by their path in it: sorted, of root, without a time.
func Archive(to io.Writer, files map[string]File) error {
	zipped, err := gzip.NewWriterLevel(to, gzip.BestCompression)
	if err != nil {
		return err
	}
	out := tar.NewWriter(zipped)
	have := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := directories(out, name, have); err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name].Content)), Format: tar.FormatPAX}
		if files[name].Program {
			header.Mode = 0o755
		}
		if err := out.WriteHeader(header); err != nil {
			return fmt.Errorf("archive %s: %w", name, err)
		}
		if _, err := out.Write(files[name].Content); err != nil {
			return fmt.Errorf("archive %s: %w", name, err)
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	return zipped.Close()
}

// directories writes those that a name is in, once each.
func directories(out *tar.Writer, name string, have map[string]bool) error {
	for at, c := range name {
		if dir := name[:at] + "/"; c == '/' && !have[dir] {
			have[dir] = true
			if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, Format: tar.FormatPAX}); err != nil {
				return fmt.Errorf("archive %s: %w", dir, err)
			}
		}
	}
	return nil
}

// Tree reads the files below a directory, for an archive in which they are below another.
func Tree(dir, below string) (map[string]File, error) {
	files := map[string]File{}
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		files[path.Join(below, filepath.ToSlash(relative))] = File{Content: text}
		return err
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("read %s: it has no file", dir)
	}
	return files, err
}

// Write makes an archive as a file, and gives its sum.
func Write(file string, files map[string]File) (sum string, err error) {
	var packed strings.Builder
	if err := Archive(&packed, files); err != nil {
		return "", err
	}
	return Sum([]byte(packed.String())), os.WriteFile(file, []byte(packed.String()), 0o644)
}

// Sum is what sha256sum prints of it.
func Sum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// Sums is SHA256SUMS of all other files of a directory: sha256sum -c reads it.
func Sums(dir string) (string, error) {
	entries, err := os.ReadDir(dir) // by name
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, entry := range entries {
		if entry.IsDir() || strings.HasPrefix(entry.Name(), "SHA256SUMS") { // its signature, too
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "%s  %s\n", Sum(content), entry.Name())
	}
	return out.String(), nil
}
