// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/maps"
)

// liveTables are open for as long as somebody looks at them again and again. Its zero value is ready.
type liveTables struct {
	pinned bpf.Pinning // of those that are open
	tables *bpf.NearlbMaps
	reader *maps.Reader
}

// open gives the tables in force, read-only; those that it gave before are closed when others took their place.
func (t *liveTables) open(pinPath string) (*maps.Reader, error) {
	now, err := bpf.PinnedNow(pinPath)
	if t.reader != nil && err == nil && now == t.pinned {
		return t.reader, nil
	}
	t.close()
	tables, err := bpf.OpenMaps(pinPath, true)
	if err != nil {
		return nil, err
	}
	reader, err := maps.NewReader(tables)
	if err != nil {
		return nil, errors.Join(err, tables.Close())
	}
	*t = liveTables{now, tables, reader}
	return reader, nil
}

func (t *liveTables) close() {
	if t.reader != nil {
		t.reader.Close()
		t.tables.Close()
	}
	*t = liveTables{}
}
