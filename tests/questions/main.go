// SPDX-License-Identifier: Apache-2.0

// Command questions plants faults in a small cluster of namespaces, asks nearlb the questions that an operator has then, and writes what
// it answered: `make questions` writes docs/questions.md.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

func main() {
	program := flag.String("nearlb", "bin/nearlb", "the program that is asked")
	out := flag.String("out", "docs/questions.md", "the file that is written")
	flag.Parse()
	if err := run(*program, *out); err != nil {
		fmt.Fprintln(os.Stderr, "questions:", err)
		os.Exit(1)
	}
}

func run(program, out string) (err error) {
	program, err = filepath.Abs(program)
	if err != nil {
		return err
	}
	w, err := newWorld(program)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	var page bytes.Buffer
	page.WriteString(preface)
	for _, q := range questions() {
		fmt.Fprintf(os.Stderr, "%s\n", q.asked)
		if err := w.answer(&page, q); err != nil {
			return fmt.Errorf("%s: %w", q.asked, err)
		}
	}
	version, _, err := w.run(80, "version")
	if err != nil {
		return err
	}
	fmt.Fprintf(&page, "\n%s, %s.\n", firstLine(version), time.Now().UTC().Format(time.DateOnly))
	return os.WriteFile(out, page.Bytes(), 0o644)
}

const preface = `# Questions at night

Each question that an operator has, asked of a cluster with the fault in it that makes people ask: three nodes, zones a, a and b, in network
namespaces, with real agents and real connections. ` + "`make questions`" + ` made this page from what the commands printed, on terminals of 80 and of 160 columns.
On a cluster ` + "`kubectl nearlb`" + ` asks all nodes at once ([kubectl.md](kubectl.md)).
`

// answer plants a question's fault, asks, and writes both.
func (w *world) answer(page *bytes.Buffer, q question) error {
	if err := q.plant(w); err != nil {
		return err
	}
	fmt.Fprintf(page, "\n## %s\n\nThe fault: %s.\n", q.asked, q.fault)
	for _, command := range q.commands {
		narrow, err := w.until(80, command, q.wants)
		if err != nil {
			return err
		}
		fmt.Fprintf(page, "\n```\n$ nearlb %s\n%s```\n", command, narrow)
		wide, err := w.until(160, command, q.wants)
		if err != nil {
			return err
		}
		if wide != narrow {
			fmt.Fprintf(page, "\n<details><summary>160 columns</summary>\n\n```\n$ nearlb %s\n%s```\n</details>\n", command, wide)
		}
	}
	if q.mend == nil {
		return nil
	}
	return q.mend(w)
}
