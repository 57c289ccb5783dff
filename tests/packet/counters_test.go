// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
	"maps"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// allHooks is how many first packets of a test, and each how many-th after them, are looked for at every hook: to read all counters takes
// several times as long as to run a packet.
const allHooks = 8

// countersAfter are the verdict counters after a packet that is to be counted at a hook. Those of other hooks are read now and then, and are
// else what they were. Where each frame counts they never are: at which hook a packet is counted, no kernel decides.
func (r *rig) countersAfter(hook string) map[counter]bpf.NearlbVerdictCounter {
	r.Helper()
	r.ran++
	if !few && (r.ran <= allHooks || r.ran%allHooks == 0) {
		return r.counters()
	}
	all := r.countersOf(slices.Index(bpf.Hooks(), hook), 1)
	others := maps.Clone(r.counted)
	maps.DeleteFunc(others, func(c counter, _ bpf.NearlbVerdictCounter) bool { return c.hook == hook })
	maps.Copy(all, others)
	return all
}

// counters reads every verdict counter, summed over processors.
func (r *rig) counters() map[counter]bpf.NearlbVerdictCounter {
	r.Helper()
	return r.countersOf(0, len(bpf.Hooks()))
}

// countersOf reads those of so many hooks, from one on.
func (r *rig) countersOf(first, hooks int) map[counter]bpf.NearlbVerdictCounter {
	r.Helper()
	kinds, processors := int(bpf.NearlbVerdictVERDICT_MAX), ebpf.MustPossibleCPU()
	values := make([]bpf.NearlbVerdictCounter, hooks*kinds*processors)
	if n, err := lookupRows(r.objects.Verdicts, first*kinds, hooks*kinds, values); err != nil || n != hooks*kinds {
		r.Fatalf("read table verdicts: %d of %d entries: %v", n, hooks*kinds, err)
	}
	all, names := map[counter]bpf.NearlbVerdictCounter{}, bpf.Hooks()
	for row := range hooks * kinds {
		var total bpf.NearlbVerdictCounter
		for _, v := range values[row*processors : (row+1)*processors] {
			total.Packets += v.Packets
			total.Bytes += v.Bytes
		}
		if total.Packets != 0 || total.Bytes != 0 {
			all[counter{names[first+row/kinds], bpf.VerdictOf(uint32(row % kinds)).Name}] = total
		}
	}
	return all
}

// lookupRows reads rows of an array from one on, and says how many there were. The library's batches begin with the first.
func lookupRows[V any](table *ebpf.Map, first, count int, values []V) (int, error) {
	before, last := uint32(first-1), uint32(0)
	keys := make([]uint32, count)
	b := batch{out: unsafe.Pointer(&last), keys: unsafe.Pointer(&keys[0]), values: unsafe.Pointer(&values[0]), count: uint32(count), fd: uint32(table.FD())}
	if first > 0 {
		b.in = unsafe.Pointer(&before)
	}
	if err := b.ask(unix.BPF_MAP_LOOKUP_BATCH); err != nil && !errors.Is(err, unix.ENOENT) { // that is the end of the table
		return 0, err
	}
	return int(b.count), nil
}

// updateRows writes rows of an array: values are as the kernel has them, each processor's where it has one of its own.
func updateRows(table *ebpf.Map, keys []uint32, values []byte) error {
	b := batch{keys: unsafe.Pointer(&keys[0]), values: unsafe.Pointer(&values[0]), count: uint32(len(keys)), fd: uint32(table.FD())}
	return b.ask(unix.BPF_MAP_UPDATE_BATCH)
}

// batch is of union bpf_attr in linux/bpf.h.
type batch struct {
	in, out, keys, values unsafe.Pointer
	count, fd             uint32
	_, _                  uint64
}

func (b *batch) ask(command uintptr) error {
	if _, _, code := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(b)), unsafe.Sizeof(*b)); code != 0 {
		return code
	}
	return nil
}
