// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"os"
	"runtime/debug"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// garbagePercent is the runtime's GOGC: how much garbage there may be, of what is in use. The agent has little of it most of the
// time, and is to be small rather than quick to collect it.
const garbagePercent = 50

// boundMemory sets the runtime's memory limit to the cgroup's limit less the tables, which count for the cgroup, too. A GOMEMLIMIT
// of the environment stays.
func boundMemory(tables *bpf.NearlbMaps) (limit int64, err error) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return 0, nil
	}
	all, err := memlimit.FromCgroup()
	switch {
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
		return 0, nil
	case err != nil:
		return 0, err
	}
	limit = memoryLimit(all, memoryOf(tables))
	debug.SetMemoryLimit(limit)
	return limit, nil
}

// memoryLimit is nine tenths of what is left beside the tables, in bytes. Tables that an earlier container made may count for that
// one still: a quarter of all is the runtime's in any case.
func memoryLimit(all, tables uint64) int64 {
	left := all / 4
	if all > tables {
		left = max(left, all-tables)
	}
	return int64(min(left, 1<<62) / 10 * 9)
}

// memoryOf is what tables take, in bytes, as far as the kernel says so.
func memoryOf(tables *bpf.NearlbMaps) (sum uint64) {
	for _, table := range tables.ByName() {
		if info, err := table.Info(); err == nil {
			bytes, _ := info.Memlock()
			sum += bytes
		}
	}
	return sum
}

// handBackPause is the least time between two times that memory is handed back: each looks at all that is in use.
const handBackPause = time.Minute

// handBackMemory gives memory back to the kernel after each time of much work: a start, thousands of changes. A start is over once programs
// serve: until then the processors have other work.
func (r *running) handBackMemory(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.daemon.attached:
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.memoryDue:
			r.daemon.garbage.end()
			debug.FreeOSMemory()
			pause(ctx, handBackPause)
		}
	}
}
