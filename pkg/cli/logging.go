// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"log"
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
	flags.Var(&f.format, "log-format", "how a line of the log is written: `text|json`")
}

// logger also has the standard library's log written so: net/http says there what it cannot return.
func (f *logFlags) logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: f.level.level}
	logger := slog.New(slog.NewTextHandler(w, options))
	if f.format == "json" {
		logger = slog.New(slog.NewJSONHandler(w, options))
	}
	log.SetFlags(0)
	log.SetOutput(strayLines{logger})
	return logger
}

// strayLines are those of the standard library's log.
type strayLines struct{ log *slog.Logger }

func (s strayLines) Write(line []byte) (int, error) {
	s.log.Warn("library said", "problem", strings.TrimSpace(string(line)))
	return len(line), nil
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
