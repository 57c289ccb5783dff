// SPDX-License-Identifier: Apache-2.0

// Command types checks that packages, and all that they import from other modules, compile for other systems as far as types tell:
//
//	go run ./tests/types -for windows/amd64,darwin/arm64 ./cmd/kubectl-nearlb
//
// Compiling takes ten times as long, half of it for the standard library, of which this command reads declarations alone. What it does not
// see is assembly and what only the linker finds, in libraries at versions that are pinned and in Go itself: `make plugin` does.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	systems := flag.String("for", "", "comma-separated systems and architectures")
	flag.Parse()
	for system := range strings.SplitSeq(*systems, ",") {
		if err := check(system, ".", flag.Args()...); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", system, err)
			os.Exit(1)
		}
	}
}

// pkg is what go list says of a package.
type pkg struct {
	ImportPath, Dir string
	Standard        bool
	GoFiles         []string
	ImportMap       map[string]string // of those imports that stand for another path
	Module          *struct{ GoVersion string }
}

// check checks the packages that match in a directory, those that they import before them.
func check(system, dir string, patterns ...string) error {
	goos, arch, ok := strings.Cut(system, "/")
	if !ok {
		return fmt.Errorf("want a system and an architecture, as in windows/amd64")
	}
	cmd := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Dir,Standard,GoFiles,ImportMap,Module"}, patterns...)...)
	cmd.Dir, cmd.Stderr, cmd.Env = dir, os.Stderr, append(os.Environ(), "GOOS="+goos, "GOARCH="+arch, "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("list packages: %w", err)
	}
	checked := map[string]*types.Package{"unsafe": types.Unsafe}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read go list: %w", err)
		}
		if checked[p.ImportPath] == nil {
			if checked[p.ImportPath], err = p.check(arch, checked); err != nil {
				return err
			}
		}
	}
}

// mostErrors are told of one package.
const mostErrors = 10

// check checks one package over those that it imports.
func (p pkg) check(arch string, imported map[string]*types.Package) (*types.Package, error) {
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	var found []error
	config := types.Config{
		IgnoreFuncBodies: p.Standard,
		Sizes:            types.SizesFor("gc", arch),
		Error: func(err error) {
			if len(found) < mostErrors {
				found = append(found, err)
			}
		},
		Importer: importer(func(path string) (*types.Package, error) {
			path = cmp.Or(p.ImportMap[path], path)
			if imported[path] == nil {
				return nil, fmt.Errorf("%s is not among the dependencies", path)
			}
			return imported[path], nil
		}),
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		config.GoVersion = "go" + p.Module.GoVersion
	}
	made, _ := config.Check(p.ImportPath, fset, files, nil) // the first error is among those found
	return made, errors.Join(found...)
}

type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }
