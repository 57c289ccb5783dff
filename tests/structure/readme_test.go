// SPDX-License-Identifier: Apache-2.0

package structure

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nearlb/nearlb/pkg/cli"
)

// pages are those that people read, by their path: README, docs/ and what they lead to.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "manifests/monitoring/*.md"} {
		files, err := filepath.Glob(filepath.Join(root(t), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all[path.Join(path.Dir(pattern), filepath.Base(file))] = string(text)
		}
	}
	return all
}

// Whoever comes for the first time reads README to its end.
func TestREADMEIsShort(t *testing.T) {
	if lines := strings.Count(pages(t)["README.md"], "\n"); lines > 150 {
		t.Errorf("README has %d lines, of 150 at most: docs/ has the rest", lines)
	}
}

// The pages name the tests that show what they say: these exist.
func TestEveryTestThatThePagesNameExists(t *testing.T) {
	have := testsOfTheTree(t)
	named := 0
	for page, text := range pages(t) {
		for _, match := range regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(text, -1) {
			if named++; !have[match[1]] {
				t.Errorf("%s names %s, which is no test", page, match[1])
			}
		}
	}
	if named < 30 {
		t.Errorf("the pages name %d tests", named)
	}
}

func TestEveryPageThatAPageLeadsToIsThere(t *testing.T) {
	all := pages(t)
	for page, text := range all {
		links := regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1)
		links = append(links, regexp.MustCompile(`(?:src|srcset)="([^"]+)"`).FindAllStringSubmatch(text, -1)...)
		for _, link := range links {
			to, anchor, _ := strings.Cut(link[1], "#")
			if strings.Contains(to, "://") {
				continue
			}
			target := page
			if to != "" {
				target = path.Join(path.Dir(page), to)
			}
			if _, err := os.Stat(filepath.Join(root(t), target)); err != nil {
				t.Errorf("%s leads to %s: %v", page, link[1], err)
			} else if anchor != "" && !slices.Contains(anchors(all[target]), anchor) {
				t.Errorf("%s leads to %s: that page has no such heading", page, link[1])
			}
		}
	}
	for page := range all {
		if name, ok := strings.CutPrefix(page, "docs/"); ok && name != "README.md" && !strings.Contains(all["docs/README.md"], "]("+name+")") {
			t.Errorf("docs/README.md does not list %s", name)
		}
	}
}

// anchors are those that GitHub gives to a page's headings.
func anchors(text string) (all []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		kept := strings.Map(func(r rune) rune {
			if strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_ ", r) {
				return r
			}
			return -1
		}, strings.ToLower(heading[1]))
		all = append(all, strings.ReplaceAll(kept, " ", "-"))
	}
	return all
}

func TestEveryTargetThatThePagesNameIsInTheMakefile(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for page, text := range pages(t) {
		for _, match := range regexp.MustCompile("(?m)(?:`|^ {4}|^)make ([a-z0-9-]+)(?:`|$| +[#A-Z])").FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`(?m)^` + match[1] + `:`).Match(makefile) {
				t.Errorf("%s names make %s, which is no target", page, match[1])
			}
		}
	}
}

// The pages name commands with their flags: those of this program.
func TestEveryCommandThatThePagesNameExists(t *testing.T) {
	checked := 0
	for page, text := range pages(t) {
		for _, line := range commandLines(text) {
			if checked++; !strings.Contains(line, "kubectl nearlb") {
				if err := understood(strings.Fields(line)); err != nil {
					t.Errorf("%s: %s: %v", page, line, err)
				}
			}
		}
	}
	if checked < 100 {
		t.Errorf("the pages name %d commands", checked)
	}
}

// commandLines gives the calls of nearlb in a page: in backquotes, or in blocks of code behind a prompt, a container's -- or nothing.
func commandLines(text string) (all []string) {
	block := regexp.MustCompile("(?ms)^```.*?^```")
	for _, match := range regexp.MustCompile("`((?:kubectl )?nearlb [^`\n]+)`").FindAllStringSubmatch(block.ReplaceAllString(text, ""), -1) {
		all = append(all, match[1])
	}
	for _, match := range regexp.MustCompile(`(?m)^(?: {4}|\$ | {4}.* -- )((?:kubectl )?nearlb .*)$`).FindAllStringSubmatch(text, -1) {
		all = append(all, match[1])
	}
	return all
}

// understood finds the command and its flags.
func understood(words []string) error {
	cmd, at := cli.Root(), 1
	for at < len(words) {
		i := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == words[at] })
		if i < 0 {
			break
		}
		cmd, at = cmd.Commands()[i], at+1
	}
	if cmd.Parent() == nil && at < len(words) && regexp.MustCompile(`^[a-z]+$`).MatchString(words[at]) && words[at] != "help" && words[at] != "completion" {
		return fmt.Errorf("there is no command %s", words[at])
	}
	for _, word := range words[at:] {
		if word == "#" {
			break
		}
		name, _, _ := strings.Cut(strings.Trim(strings.TrimLeft(word, "[("), ")].,;:"), "=")
		if flag, long := strings.CutPrefix(name, "--"); long && flag != "" && flag != "help" && lookup(cmd, flag) == nil {
			return fmt.Errorf("%s has no flag --%s", cmd.CommandPath(), flag)
		}
	}
	return nil
}

func lookup(cmd *cobra.Command, flag string) *pflag.Flag {
	if found := cmd.Flags().Lookup(flag); found != nil {
		return found
	}
	return cmd.InheritedFlags().Lookup(flag)
}

func testsOfTheTree(t *testing.T) map[string]bool {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	have := map[string]bool{}
	for _, text := range filesOf(t, ".", func(path string) bool { return strings.HasSuffix(path, "_test.go") }) {
		for _, match := range function.FindAllSubmatch(text, -1) {
			have[string(match[1])] = true
		}
	}
	return have
}
