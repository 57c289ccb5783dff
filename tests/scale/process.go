// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ticks is how many units of processor time /proc counts in a second (USER_HZ).
const ticks = 100

// processor is the processor time that a process has used, and those that it started: kube-proxy has nft do its work, an agent has
// a child load programs.
func processor(pid int) (time.Duration, error) {
	sum, err := own(pid)
	if err != nil {
		return 0, err
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(task) // or the thread has ended
		for child := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(child); err == nil {
				used, _ := own(pid) // or it has ended, and is counted next time
				sum += used
			}
		}
	}
	return sum, err
}

// own is a process's, and of those that it started and that have ended.
func own(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) // from the state on
	if len(fields) < 15 {
		return 0, fmt.Errorf("read processor time of %d: %q", pid, text)
	}
	sum := int64(0)
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read processor time of %d: %w", pid, err)
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks, nil
}

// sampler notes how much processor time a process has used at every moment, until it is stopped.
type sampler struct {
	mu      sync.Mutex
	moments []moment
	stop    chan struct{}
}

type moment struct {
	at   time.Time
	used time.Duration
}

func sample(pid int) *sampler {
	s := &sampler{stop: make(chan struct{})}
	go func() {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			if used, err := processor(pid); err == nil {
				s.mu.Lock()
				s.moments = append(s.moments, moment{time.Now(), used})
				s.mu.Unlock()
			}
			select {
			case <-ticker.C:
			case <-s.stop:
				return
			}
		}
	}()
	return s
}

// usedAt is the processor time that was used at a moment, and ends the sampling.
func (s *sampler) usedAt(at time.Time) (used time.Duration) {
	close(s.stop)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.moments {
		used = m.used
		if m.at.After(at) {
			break
		}
	}
	return used
}
