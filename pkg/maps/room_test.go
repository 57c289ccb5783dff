// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/privileged"
)

// Whoever adds frontends leaves some records for the others, who could not be changed any more.
func TestAServiceThatGrowsLeavesRecordsForReplacingOthers(t *testing.T) {
	sizes := tinySizes()
	sizes.Records = 32 // of which one is never used and two are for replacing
	b := newTables(t, sizes)
	b.apply(t, made(1, active(1)...))
	big := made(2, active(2)...)
	for i := range 40 {
		addFrontend(&big, big.Frontends[0].Internal, lb.KindExternalIP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 80))
		stats, err := b.Apply(big)
		if err == nil && stats.Frontends > 0 {
			continue
		}
		if full, ok := asFull(err); !ok || full.Table != bpf.NearlbMapRecords || full.Limit != 32 {
			t.Fatalf("error %v, want full records", err)
		}
		break
	}
	for host := range 7 {
		b.apply(t, made(1, active(host)...))
		b.later()
	}
}

// The kernel's own refusal names the table, where somebody else filled it.
func TestARefusalOfTheKernelNamesTheTableThatIsFull(t *testing.T) {
	privileged.Require(t)
	sizes := tinySizes()
	for _, row := range []struct {
		table string
		limit uint32
		wants string
		fill  func(s *store) error
	}{
		{bpf.NearlbMapFrontends, sizes.Frontends, ", the Service wants 1", func(s *store) error {
			return fillUp(s.frontends, func(i uint32) frontendKey { return frontendKey{Port: uint16(i)} }, 1)
		}},
		{bpf.NearlbMapNames, sizes.Names, "", func(s *store) error {
			return fillUp(s.names, func(i uint32) nameKey { return nameKey{Kind: 9, Id: i} }, "x")
		}},
		{bpf.NearlbMapSourceRanges, sizes.SourceRanges, "", func(s *store) error {
			return fillUp(s.ranges, func(i uint32) rangeKey { return rangeKey{PrefixBits: 32, Service: ^i} }, 1)
		}},
	} {
		t.Run(row.table, func(t *testing.T) {
			b := privateBench(t, sizes)
			if err := row.fill(b.store); err != nil {
				t.Fatal(err)
			}
			d := made(1, active(1)...)
			d.Frontends[0].SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
			want := fmt.Sprintf("publish service default/s1: table %s is full (%d entries)%s: raise the agent's %s", row.table, row.limit, row.wants, bpf.SizeFlag(row.table))
			if _, err := b.Apply(d); err == nil || err.Error() != want {
				t.Errorf("error %v, want %s", err, want)
			}
		})
	}
}

func TestMoreDevicesThanTheirTableHoldsAreToldAndTheOthersAreThere(t *testing.T) {
	privileged.Require(t)
	b := privateBench(t, tinySizes())
	devices := map[uint32]DeviceSources{}
	for i := range uint32(deviceLimit + 1) {
		devices[i+1] = DeviceSources{}
	}
	want := fmt.Sprintf("configure tables: table devices is full (%d entries)", deviceLimit)
	if err := b.Configure(Config{Devices: devices}); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if _, first, err := b.store.devices.get(1); !first || err != nil {
		t.Errorf("the first device is missing (%v)", err)
	}
	delete(devices, 2)
	if err := b.Configure(Config{Devices: devices}); err != nil {
		t.Errorf("with room for all: %v", err)
	}
}

func privateBench(t *testing.T, sizes bpf.Sizes) *bench {
	t.Helper()
	m := privateMaps(t, sizes)
	b := kernelBench(t, m)
	t.Cleanup(func() {
		if err := errors.Join(b.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// fillUp puts entries until there is no room.
func fillUp[K comparable, V any](table hash[K, V], key func(uint32) K, value V) error {
	for i := range table.room() + 1 {
		if err := table.put(key(i+1), value); err != nil {
			if errors.Is(err, errFull) {
				return nil
			}
			return err
		}
	}
	return errors.New("there is room for more than its limit")
}
