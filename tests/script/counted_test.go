// SPDX-License-Identifier: Apache-2.0

package script

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/maps"
)

// counted is the command of scripts.
func counted(ts *testscript.TestScript, args []string) int {
	ts.Check(count(args))
	return 0
}

// count writes what programs would have counted of a backend.
func count(args []string) (err error) {
	if len(args) != 4 {
		return errors.New("usage: counted PIN BACKEND CONNECTIONS BYTES")
	}
	var numbers [2]uint64
	for i := range numbers {
		if numbers[i], err = strconv.ParseUint(args[2+i], 10, 64); err != nil {
			return err
		}
	}
	tables, err := bpf.OpenMaps(args[0], false)
	if err != nil {
		return err
	}
	defer tables.Close()
	reader, err := maps.NewReader(tables)
	if err != nil {
		return err
	}
	defer reader.Close()
	for row, err := range reader.Backends() {
		if err != nil {
			return err
		}
		if net.JoinHostPort(row.Address.String(), strconv.Itoa(int(row.BackendPort))) != args[1] {
			continue
		}
		processors, err := ebpf.PossibleCPU()
		if err != nil {
			return err
		}
		each := make([]bpf.NearlbBackendCounter, processors)
		each[0] = bpf.NearlbBackendCounter{Connections: numbers[0], BytesTo: numbers[1] / 2, BytesFrom: numbers[1] - numbers[1]/2}
		return tables.BackendCounters.Put(row.ID, each)
	}
	return fmt.Errorf("no backend %s", args[1])
}
