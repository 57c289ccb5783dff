// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/nearlb/nearlb/tests/kernels/job"
)

// tools are the programs of the machine that tests call.
var tools = []string{"nft"}

// source is where the guest has the repository's directories.
const source = "/nearlb"

// programs are what was built for the guests.
type programs struct{ dir string }

// build compiles the tests as `make test` does, so that what was compiled for it is used again.
func build(repository, dir string, suites []suite) (*programs, error) {
	p := &programs{dir: dir}
	if err := compile(repository, "build", p.path("guest"), "tests/kernels/guest"); err != nil {
		return nil, err
	}
	for _, s := range suites {
		if err := compile(repository, "test", p.path(s.pkg), s.pkg); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func compile(repository, verb, to, pkg string) error {
	args := []string{verb, "-ldflags=-s -w", "-o", to}
	if verb == "test" {
		args = append(args, "-c")
	}
	command := exec.Command("go", append(args, "./"+pkg)...)
	command.Dir, command.Env = repository, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s: %w\n%s", pkg, err, out)
	}
	if _, err := os.Stat(to); err != nil {
		return fmt.Errorf("compile %s: it has no tests", pkg)
	}
	return nil
}

// path is where the program of a package is on this machine.
func (p *programs) path(pkg string) string {
	return filepath.Join(p.dir, fileName(pkg))
}

// fileName is the name of a package's program, here and in the guests.
func fileName(pkg string) string { return strings.ReplaceAll(pkg, "/", "_") }

// runs are the guest's runs: number i is suite i's. each: time for one.
func runs(suites []suite, each time.Duration) []job.Run {
	var all []job.Run
	for _, s := range suites {
		command := []string{"/bin/" + fileName(s.pkg), "-test.v=test2json", "-test.count=1",
			fmt.Sprintf("-test.timeout=%s", each), "-test.run=" + s.only, "-test.skip=" + s.without}
		env := []string{"NEARLB_REQUIRE_PRIVILEGED=1"}
		if s.env != "" {
			env = append(env, s.env)
		}
		if s.worlds > 0 {
			env = append(env, fmt.Sprintf("RAPID_CHECKS=%d", s.worlds))
		}
		all = append(all, job.Run{
			Dir:     filepath.Join(source, s.pkg),
			Command: command,
			Env:     env,
			Seconds: int(each.Seconds()) + 30, // the test program itself comes first, and says where it hangs
		})
	}
	return all
}

// writeImage writes the guest's initial file system: with what it runs, as the kernel unpacks all of it.
func (p *programs) writeImage(path, repository string, modules []module, suites []suite, runs []job.Run) error {
	a, err := newArchive(path)
	if err != nil {
		return err
	}
	todo := job.Job{Runs: runs}
	for _, m := range modules {
		file := "/modules/" + m.name + ".ko"
		a.program(file, m.text)
		todo.Modules = append(todo.Modules, file)
	}
	text, err := json.Marshal(todo)
	if err != nil {
		return err
	}
	a.program(job.File, text)
	a.program("/etc/hosts", []byte("127.0.0.1 localhost\n::1 localhost\n"))
	a.program("/etc/passwd", []byte("root:x:0:0::/root:/bin/false\n"))
	a.directory("/root")
	if err := p.add(a, repository, suites); err != nil {
		a.file.Close()
		return err
	}
	return a.close()
}

func (p *programs) add(a *archive, repository string, suites []suite) error {
	if err := addProgram(a, p.path("guest"), "/init"); err != nil {
		return err
	}
	for _, tool := range tools {
		from, err := exec.LookPath(tool)
		if err != nil {
			return err
		}
		if err := addProgram(a, from, "/usr/sbin/"+tool); err != nil {
			return err
		}
	}
	for _, s := range suites {
		from := p.path(s.pkg)
		if err := addProgram(a, from, "/bin/"+filepath.Base(from)); err != nil {
			return err
		}
		a.directory(filepath.Join(source, s.pkg))
		if err := addTree(a, repository, s.pkg+"/testdata"); err != nil {
			return err
		}
	}
	return nil
}

func addTree(a *archive, repository, dir string) error {
	return filepath.WalkDir(filepath.Join(repository, dir), func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		inside, err := filepath.Rel(repository, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		a.program(filepath.Join(source, inside), text)
		return err
	})
}

var library = regexp.MustCompile(`(/\S+) \(0x`)

// addProgram adds a program, and the shared libraries that it needs where the loader looks for them.
func addProgram(a *archive, from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	a.program(to, text)
	if dynamic, err := isDynamic(from); err != nil || !dynamic {
		return err
	}
	out, err := exec.Command("ldd", from).Output()
	if err != nil {
		return fmt.Errorf("find libraries of %s: %w", from, err)
	}
	for _, match := range library.FindAllStringSubmatch(string(out), -1) {
		text, err := os.ReadFile(match[1])
		if err != nil {
			return err
		}
		a.program(match[1], text)
	}
	return nil
}

func isDynamic(path string) (bool, error) {
	file, err := elf.Open(path)
	if err != nil {
		return false, fmt.Errorf("read program %s: %w", path, err)
	}
	defer file.Close()
	return file.Section(".interp") != nil, nil
}
