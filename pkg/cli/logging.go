// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"
)

// logFlags say how the agent logs.
type logFlags struct {
	level  levelFlag
	format formatFlag
}

func (f *logFlags) add(flags *pflag.FlagSet) {
	f.format = "text"
	flags.Var(&f.level, "log-level", "least `level` to log: debug, info, warn or error")
	flags.Var(&f.format, "log-format", "`text|json`")
}

func (f *logFlags) logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: f.level.level}
	if f.format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

type levelFlag struct{ level slog.Level }

func (f *levelFlag) Type() string   { return "level" }
func (f *levelFlag) String() string { return strings.ToLower(f.level.String()) }

func (f *levelFlag) Set(text string) error {
	if f.level.UnmarshalText([]byte(text)) != nil {
		return fmt.Errorf("want debug, info, warn or error")
	}
	return nil
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
