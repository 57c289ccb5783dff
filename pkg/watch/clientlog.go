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

// Enabled keeps to klog's two lowest levels; the others trace client-go itself. What it has to say at these is for those who look
// for a mistake: what the user is to know of the API server is said once, by the source.
func (s *clientSink) Enabled(level int) bool {
	return level <= 1 && s.log.Enabled(context.Background(), slog.LevelDebug)
}

func (s *clientSink) Info(_ int, message string, keysAndValues ...any) {
	s.log.Log(context.Background(), slog.LevelDebug, message, keysAndValues...)
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
