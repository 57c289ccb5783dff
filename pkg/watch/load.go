// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/lb"
)

// standardInput is the argument that stands for it, and its name in errors.
const (
	standardInput     = "-"
	standardInputName = "standard input"
)

// Load reads files and directories once; "-" is stdin. Run of the source it returns says Synced and returns at once.
// Each warning is one line. A file that is refused is an error, an *ObjectError where an object or its text is to blame.
func Load(files []string, stdin io.Reader, cfg NodeConfig, warn func(string)) (Loaded, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l := &loader{reader: newReader(), store: newStore(cfg), warn: warn, from: map[objectKey]string{}}
	if l.warn == nil {
		l.warn = func(string) {}
	}
	for _, name := range files {
		if err := l.argument(name, stdin); err != nil {
			return nil, err
		}
	}
	if cfg.Name != "" && cfg.Zone == "" && len(cfg.IPs) == 0 && l.store.nodes[cfg.Name] == nil {
		l.warn(fmt.Sprintf("Node %s: no such object: this node has no zone and no addresses", cfg.Name))
	}
	return loaded{l.store}, nil
}

// Loaded is a source of objects that were read once.
type Loaded interface {
	Source
	// Unserved has a decision without frontends for each Service that slices name and that is not served, by name: it
	// lists their endpoints, so that every endpoint of every slice is accounted for.
	Unserved() []lb.Decision
}

// loaded is a store that nothing changes any more.
type loaded struct{ *store }

// Run has nothing to follow.
func (l loaded) Run(_ context.Context, ev Events) error {
	ev.Synced()
	return nil
}

// Problems are also those of slices whose Service is not among the files: nothing that comes later will want them.
func (l loaded) Problems() []lb.Problem {
	out := l.store.Problems()
	l.mu.RLock()
	defer l.mu.RUnlock()
	for name, slice := range l.slices {
		if slice.owner.Name != "" && l.services[slice.owner] == nil {
			out = append(out, lb.Problem{Object: name.key().String(), Field: "metadata.labels[" + labelServiceName + "]",
				Message: "no Service " + slice.owner.String() + " is served: these endpoints are of no use"})
		}
	}
	return sortProblems(out)
}

// Unserved orders endpoints as decide does.
func (l loaded) Unserved() []lb.Decision {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var out []lb.Decision
	for owner, owned := range l.owned {
		if l.services[owner] != nil {
			continue
		}
		d, g := lb.Decision{Service: owner}, gatherer{store: l.store}
		for _, slice := range owned {
			for _, e := range g.append(nil, slice) {
				d.Endpoints = append(d.Endpoints, lb.EndpointReason{
					Port:    lb.PortName{Service: owner, Port: e.Port.Name, Protocol: e.Port.Protocol},
					Address: e.Address, Slice: e.Slice, Node: e.Node, Zone: e.Zone, Reason: lb.ReasonNoService,
				})
			}
		}
		slices.SortFunc(d.Endpoints, lb.EndpointReason.Compare)
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b lb.Decision) int { return a.Service.Compare(b.Service) })
	return out
}

type loader struct {
	*reader
	store *store
	warn  func(string)
	from  map[objectKey]string // the file that defines an object
	stdin bool                 // read already
}

func (l *loader) argument(name string, stdin io.Reader) error {
	if name == standardInput {
		return l.standardInput(stdin)
	}
	info, err := os.Stat(name)
	if err != nil {
		return plainly("read", name, err)
	}
	if !info.IsDir() {
		return l.file(name)
	}
	names, err := manifests(name)
	if err != nil {
		return plainly("read directory", name, err)
	}
	if len(names) == 0 {
		l.warn(fmt.Sprintf("%s: no file *.yaml, *.yml or *.json in this directory", name))
	}
	for _, base := range names {
		if err := l.file(filepath.Join(name, base)); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) standardInput(stdin io.Reader) error {
	if l.stdin || stdin == nil {
		return errors.New("read standard input: it can be given once")
	}
	l.stdin = true
	data, err := io.ReadAll(stdin)
	if err != nil {
		return plainly("read", standardInputName, err)
	}
	return l.take(standardInputName, data)
}

func (l *loader) file(name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return plainly("read", name, err)
	}
	return l.take(name, data)
}

func (l *loader) take(name string, data []byte) error {
	objects, refusal := l.read(name, data, l.warn)
	if refusal != nil {
		return refusal
	}
	for _, o := range objects {
		if other, ok := l.from[o.key]; ok {
			return twice(name, o.key, other)
		}
		l.from[o.key] = name
	}
	l.store.apply(objects, nil, &changes{})
	return nil
}

func twice(name string, key objectKey, other string) *ObjectError {
	return &ObjectError{File: name, Object: key.String(), Problem: "is defined in " + other + " already"}
}

// plainly says a file's error once: those of package os repeat verb and name.
func plainly(verb, name string, err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return fmt.Errorf("%s %s: %w", verb, name, err)
}

// manifests names the files of a directory that are read, sorted. Hidden ones are not, nor are directories in it.
func manifests(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, entry := range entries {
		if isManifest(entry.Name()) && isFile(dir, entry) {
			out = append(out, entry.Name())
		}
	}
	slices.Sort(out)
	return out, nil
}

func isManifest(base string) bool {
	return !strings.HasPrefix(base, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(base))
}

// isFile follows symbolic links, which Kubernetes' own volumes are made of. One that leads nowhere counts as a file: to
// read it says so.
func isFile(dir string, entry os.DirEntry) bool {
	if entry.Type()&os.ModeSymlink == 0 {
		return entry.Type().IsRegular()
	}
	info, err := os.Stat(filepath.Join(dir, entry.Name()))
	return err != nil || info.Mode().IsRegular()
}
