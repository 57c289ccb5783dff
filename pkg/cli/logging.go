// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// logFlags say how the agent logs.
type logFlags struct {
	level  slog.Level
	format formatFlag
}

func (f *logFlags) add(flags *pflag.FlagSet) {
	f.format = "text"
	flags.TextVar(&f.level, "log-level", slog.LevelInfo, "least `level` to log: debug, info, warn or error")
	flags.Var(&f.format, "log-format", "`text|json`")
}

func (f *logFlags) logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: f.level}
	if f.format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

type formatFlag string

func (f *formatFlag) Type() string   { return "format" }
func (f *formatFlag) String() string { return string(*f) }

func (f *formatFlag) Set(text string) error {
	if text != "text" && text != "json" {
		return fmt.Errorf("want text or json")
	}
	*f = formatFlag(text)
	return nil
}
