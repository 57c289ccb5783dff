// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// emptyTable makes a table what it was when it was made.
func emptyTable(table *ebpf.Map) error {
	switch table.Type() {
	case ebpf.ProgramArray, ebpf.SkStorage: // belongs to the load; went with the sockets
		return nil
	case ebpf.RingBuf:
		return drain(table)
	case ebpf.Array, ebpf.PerCPUArray:
		return zero(table)
	}
	return deleteAll(table)
}

func zero(table *ebpf.Map) error {
	if table.Flags()&unix.BPF_F_MMAPABLE != 0 {
		memory, err := table.Memory()
		if err == nil {
			_, err = memory.WriteAt(make([]byte, memory.Size()), 0)
		}
		return err
	}
	return putZeros(table)
}

// zeros are what tables of the kernel's own memory are filled with.
var zeros [1 << 20]byte

// putZeros writes every entry, many in one call: a call for each was a fifth of what a short test costs. So was to have the library copy zeros.
func putZeros(table *ebpf.Map) error {
	size := int(table.ValueSize())
	if table.Type() == ebpf.PerCPUArray {
		size = (size + 7) / 8 * 8 * ebpf.MustPossibleCPU()
	}
	most := uint32(len(zeros) / size)
	for first := uint32(0); first < table.MaxEntries(); first += most {
		keys := make([]uint32, min(most, table.MaxEntries()-first))
		for i := range keys {
			keys[i] = first + uint32(i)
		}
		if err := updateRows(table, keys, zeros[:]); err != nil {
			return err
		}
	}
	return nil
}

// deleteAll deletes what a table has, key by key: the kernel gives a first one as long as there is any.
func deleteAll(table *ebpf.Map) error {
	for {
		key, err := table.NextKeyBytes(nil)
		if err != nil || key == nil {
			return err
		}
		if err := table.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
}

func drain(table *ebpf.Map) error {
	reader, err := ringbuf.NewReader(table)
	if err != nil {
		return err
	}
	defer reader.Close()
	reader.SetDeadline(time.Unix(1, 0)) // what is there, and nothing that comes
	for {
		if _, err := reader.Read(); errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
