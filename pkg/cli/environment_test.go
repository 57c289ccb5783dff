// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/nearlb/nearlb/pkg/command"
)

// The command line comes before the environment, and that before the directory of a ConfigMap.
func TestFlagsComeFromADirectoryWhereNothingElseSetsThem(t *testing.T) {
	dir := t.TempDir()
	for name, value := range map[string]string{"zone": "of-the-directory\n", "node-name": "of-the-directory", "log-level": "debug", "ejektion": "off"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	zone, node, level := flags.String("zone", "", ""), flags.String("node-name", "", ""), flags.String("log-level", "info", "")
	flags.String("ejection", "on", "")
	t.Setenv("NEARLB_NODE_NAME", "of-the-environment")
	if err := flags.Parse([]string{"--zone=of-the-command-line"}); err != nil {
		t.Fatal(err)
	}
	if err := command.FromEnvironment(flags); err != nil {
		t.Fatal(err)
	}
	var warned []string
	settings, err := fromDirectory(flags, dir, func(text string) { warned = append(warned, text) })
	if err != nil || len(settings.Values) != 4 || settings.Values["zone"] != "of-the-directory" {
		t.Fatalf("%+v, %v", settings, err)
	}
	if *zone != "of-the-command-line" || *node != "of-the-environment" || *level != "debug" {
		t.Errorf("zone %s, node %s, log level %s", *zone, *node, *level)
	}
	if len(warned) != 1 || !strings.Contains(warned[0], "did you mean ejection?") {
		t.Errorf("of a file that is no flag: %q", warned)
	}
}

func TestAValueOfADirectoryThatAFlagRefusesIsBadUsage(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "count"), []byte("many"), 0o644); err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	flags.Int("count", 1, "")
	if _, err := fromDirectory(flags, dir, func(string) {}); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "count")) {
		t.Errorf("got %v", err)
	}
}
