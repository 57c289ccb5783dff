// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"log/slog"

	"k8s.io/klog/v2"
)

// ClientLogger makes a logger for client-go of ours: give it to klog.SetLogger, or to klog.NewContext.
func ClientLogger(log *slog.Logger) klog.Logger {
	return klog.New(&clientSink{log: log})
}

type clientSink struct{ log *slog.Logger }

// Init has nothing to take from it.
func (s *clientSink) Init(klog.RuntimeInfo) {}

// Enabled keeps to klog's two lowest levels; the others trace client-go itself.
func (s *clientSink) Enabled(level int) bool {
	return level <= 1 && s.log.Enabled(context.Background(), verbosity(level))
}

func verbosity(level int) slog.Level {
	if level == 0 {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

func (s *clientSink) Info(level int, message string, keysAndValues ...any) {
	s.log.Log(context.Background(), verbosity(level), message, keysAndValues...)
}

func (s *clientSink) Error(err error, message string, keysAndValues ...any) {
	s.log.Warn(message, append(keysAndValues, "error", err)...)
}

func (s *clientSink) WithValues(keysAndValues ...any) klog.LogSink {
	return &clientSink{log: s.log.With(keysAndValues...)}
}

// WithName notes which part of client-go speaks.
func (s *clientSink) WithName(name string) klog.LogSink {
	return &clientSink{log: s.log.With("logger", name)}
}
