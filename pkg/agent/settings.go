// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Settings are the values of flags that a directory has, one file for each, as kubelets mount a ConfigMap. The agent reads them when it
// starts; of what is changed afterwards it says that a restart is needed.
type Settings struct {
	Dir    string            // --config-dir; "": none
	Values map[string]string // by flag, as they were at the start
}

// settingsEvery is how often the directory is compared with what it was. A kubelet takes up to a minute to change it.
const settingsEvery = 10 * time.Second

// mostOfSetting bounds what is read of one file: no flag's value is as long.
const mostOfSetting = 64 << 10

// ReadSettings reads a directory. One that is not there has none, as an optional ConfigMap. Files whose names begin with a dot are the
// kubelet's own.
func ReadSettings(dir string) (Settings, error) {
	s := Settings{dir, map[string]string{}}
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("read settings: %w", err)
	}
	for _, file := range files {
		if strings.HasPrefix(file.Name(), ".") {
			continue
		}
		text, err := readSome(filepath.Join(dir, file.Name()))
		if err != nil {
			return s, fmt.Errorf("read settings: %w", err)
		}
		s.Values[file.Name()] = strings.TrimSpace(text)
	}
	return s, nil
}

func readSome(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular() || info.Size() > mostOfSetting:
		return "", fmt.Errorf("%s: want a file of the value of a flag", path)
	}
	text, err := os.ReadFile(path)
	return string(text), err
}

// changed says which flags have another value than at the start; nil: none has.
func (s Settings) changed() error {
	now, err := ReadSettings(s.Dir)
	if err != nil {
		return err
	}
	var texts []string
	flags := maps.Clone(now.Values)
	maps.Copy(flags, s.Values)
	for _, flag := range slices.Sorted(maps.Keys(flags)) {
		if was, is := s.Values[flag], now.Values[flag]; was != is {
			texts = append(texts, fmt.Sprintf("%s is %q, and this agent started with %q", flag, is, was))
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return fmt.Errorf("restart the agent for what changed (kubectl -n kube-system rollout restart daemonset/nearlb; no connection is lost): %s", strings.Join(texts, "; "))
}

// followSettings has the status, the log and the metrics say that a restart is needed, until ctx ends.
func (d *daemon) followSettings(ctx context.Context) error {
	if d.options.Settings.Dir == "" {
		return nil
	}
	tick := time.NewTicker(settingsEvery)
	defer tick.Stop()
	for {
		d.lookAtSettings()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (d *daemon) lookAtSettings() {
	err := d.options.Settings.changed()
	d.outdated.Store(err != nil)
	if d.diary.trouble("follow "+d.options.Settings.Dir, err) {
		d.log.Warn("configuration changed: restart needed", "error", err)
	}
}
