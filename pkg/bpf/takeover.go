// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// Former are the tables of other generations, the one in force until now first. Empty: this start upgrades nothing.
func (o *Objects) Former() []*Former { return o.former }

// Fresh says that the tables are new ones beside those in force: until TakeOver, nothing may be attached and another start
// throws them away.
func (o *Objects) Fresh() bool { return o.unfinished }

// TakeOver puts these tables in force: from now on whoever starts goes on with them. What was in force is kept as Former,
// as its programs are attached still.
func (o *Objects) TakeOver() error {
	if !o.unfinished {
		return nil
	}
	if err := o.former[0].leave(o.pinPath); err != nil {
		return err
	}
	return o.rename(own(o.pinPath).path)
}

// formerPrograms are the tail calls that lead to the programs of the layout that is being left, with the names of these.
var formerPrograms = map[NearlbProgram]string{
	NearlbProgramPROGRAM_FORMER:           "from_net",
	NearlbProgramPROGRAM_FORMER_POD:       "from_pod",
	NearlbProgramPROGRAM_FORMER_REPLY:     "from_net",
	NearlbProgramPROGRAM_FORMER_POD_REPLY: "from_pod",
}

// askFormer has programs that know no connection of a packet in the middle of one, or of a reply to SNAT, hand it to those of the
// layout that is being left: a connection may have begun there after it was carried over last. suffix tells which load's directories
// have the same kind of programs. Without them such a reply passes to the host, which resets the server's connection, and a
// packet of a client may leave by another port or to another server than those before.
func (o *Objects) askFormer(programs *ebpf.Map, suffix string) error {
	if len(o.former) == 0 {
		return nil
	}
	loads, err := os.ReadDir(o.former[0].generation.programs())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list pinned programs: %w", err)
	}
	for _, load := range slices.Backward(loads) { // the last one first
		if strings.HasPrefix(load.Name(), unfinishedLoad) || strings.HasSuffix(load.Name(), layer3Suffix) != (suffix != "") {
			continue
		}
		if leadTo(programs, filepath.Join(o.former[0].generation.programs(), load.Name())) == nil {
			return nil
		}
		// somebody damaged it: not worth a start that fails
	}
	return nil
}

// leadTo fills the tail calls that lead to the programs pinned in a directory: those that it has, as devices without an Ethernet
// header have no pods.
func leadTo(programs *ebpf.Map, dir string) error {
	for at, name := range formerPrograms {
		p, err := ebpf.LoadPinnedProgram(filepath.Join(dir, name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = errors.Join(programs.Put(uint32(at), p), p.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// forget takes back what askFormer did.
func forget(programs *ebpf.Map, at ...NearlbProgram) error {
	for _, at := range at {
		if err := programs.Delete(uint32(at)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("leave the programs of another layout: %w", err)
		}
	}
	return nil
}

// DetachFormer detaches the programs of the other generations that ran beside these. What they have written until then is to be carried over
// after the kernel's grace period. Their links would go with their files too, but some time later, and their tail calls may go first: packets would
// be dropped.
func (o *Objects) DetachFormer() {
	for _, f := range o.former {
		detachAll(f.links())
	}
}

// RemoveFormer takes the other generations out of the kernel. Call it when no program of them is needed any more. Their connections go first:
// a start that goes on after a kill must not carry over again what may have ended since.
func (o *Objects) RemoveFormer() error {
	if err := errors.Join(o.ForgetFormer(), o.ForgetFormerReplies()); err != nil {
		return err
	}
	for len(o.former) > 0 {
		last := o.former[len(o.former)-1]
		if err := os.Remove(filepath.Join(last.maps(), NearlbMapFlows)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove table %s: %w", NearlbMapFlows, err)
		}
		if _, err := removeGeneration(last.path); err != nil {
			return err
		}
		last.close()
		o.former = o.former[:len(o.former)-1]
	}
	return o.generation.unpinCarry()
}

// ForgetFormer has these programs hand no more packets of clients to those of the other generations. What those have written since they were
// attached is to be carried over after the kernel's grace period, before those that ran beside these are detached (DetachFormer): their answers
// would be translated by nobody.
func (o *Objects) ForgetFormer() error {
	return o.forget(NearlbProgramPROGRAM_FORMER, NearlbProgramPROGRAM_FORMER_POD)
}

// ForgetFormerReplies has them hand no more answers to those, either. The programs that leave the node make connections of the host's own sockets
// in their tables (bpf/lib/host.h), so this comes after DetachFormer, and after these were carried over.
func (o *Objects) ForgetFormerReplies() error {
	return o.forget(NearlbProgramPROGRAM_FORMER_REPLY, NearlbProgramPROGRAM_FORMER_POD_REPLY)
}

func (o *Objects) forget(at ...NearlbProgram) error {
	o.layer3Mu.Lock()
	defer o.layer3Mu.Unlock()
	if o.layer3 != nil {
		if err := forget(o.layer3.Maps[NearlbMapPrograms], at...); err != nil {
			return err
		}
	}
	return forget(o.NearlbMaps.Programs, at...)
}

// RemoveOldPrograms unpins the programs of earlier loads. Call it when every link points at this load's.
func (o *Objects) RemoveOldPrograms() error {
	return o.removePrograms(func(string) bool { return true })
}

// RemoveUnattachedPrograms unpins the loads of agents that ended before they attached any of their programs, or while they
// pinned them: those that have none of the programs that are attached.
func (o *Objects) RemoveUnattachedPrograms(attached map[ebpf.ProgramID]bool) error {
	return o.removePrograms(func(dir string) bool { return !holdsAny(dir, attached) })
}

func (o *Objects) removePrograms(unneeded func(dir string) bool) error {
	if o.loaded == "" {
		return nil
	}
	entries, err := os.ReadDir(o.generation.programs())
	if err != nil {
		return fmt.Errorf("list pinned programs: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(o.generation.programs(), e.Name())
		if strings.TrimSuffix(e.Name(), layer3Suffix) == o.loaded || !unneeded(dir) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove pinned programs: %w", err)
		}
	}
	return nil
}

// holdsAny says whether one of the programs pinned in a directory is among these. What cannot be read may be.
func holdsAny(dir string, ids map[ebpf.ProgramID]bool) bool {
	pinned, err := pinnedPrograms(dir)
	if err != nil {
		return true
	}
	for id := range pinned {
		if ids[id] {
			return true
		}
	}
	return false
}

// pinnedPrograms are the programs of one load.
func pinnedPrograms(dir string) (map[ebpf.ProgramID]bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list pinned programs: %w", err)
	}
	found := map[ebpf.ProgramID]bool{}
	for _, e := range entries {
		p, err := ebpf.LoadPinnedProgram(filepath.Join(dir, e.Name()), nil)
		if forbidden(err) {
			return nil, err
		}
		if err != nil {
			continue // the table of tail calls
		}
		info, err := p.Info()
		p.Close()
		if err != nil {
			return nil, fmt.Errorf("read pinned program: %w", err)
		}
		if id, ok := info.ID(); ok {
			found[id] = true
		}
	}
	return found, nil
}

// PinnedPrograms are all programs under a pin path, of whatever generation and load.
func PinnedPrograms(pinPath string) (map[ebpf.ProgramID]bool, error) {
	all, err := generations(pinPath)
	if err != nil {
		return nil, err
	}
	found := map[ebpf.ProgramID]bool{}
	for _, g := range all {
		loads, err := os.ReadDir(g.programs())
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list pinned programs: %w", err)
		}
		for _, load := range loads {
			if !load.IsDir() {
				continue // somebody's file
			}
			ids, err := pinnedPrograms(filepath.Join(g.programs(), load.Name()))
			if err != nil {
				return nil, err
			}
			for id := range ids {
				found[id] = true
			}
		}
	}
	return found, nil
}
