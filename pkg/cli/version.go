// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/command"
)

// version is set by the linker (Makefile); a plain go build or go install takes the module's version.
var version string

func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// versionDocument is `nearlb version -o json`.
type versionDocument struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`   // "" where it was not built from a repository
	Modified bool   `json:"modified"` // files differed from the commit
	Layout   uint32 `json:"layout"`   // of the pinned tables: agents of one layout take each other's over as they are
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionDocument() versionDocument {
	doc := versionDocument{Version: versionText(), Layout: bpf.SchemaVersion, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return doc
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			doc.Commit = s.Value
		case "vcs.modified":
			doc.Modified = s.Value == "true"
		}
	}
	return doc
}

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  command.NoArguments,
	}
	output := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch out := cmd.OutOrStdout(); output.Value {
		case command.FormatJSON:
			return command.WriteJSON(out, newVersionDocument())
		case command.FormatYAML:
			return command.WriteYAML(out, newVersionDocument())
		default:
			_, err := fmt.Fprintf(out, "nearlb %s\n", versionText())
			return err
		}
	}
	return cmd
}
