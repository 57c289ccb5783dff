// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/nearlb/nearlb/pkg/bpf"
	tables "github.com/nearlb/nearlb/pkg/maps"
)

// An upgrade, or a downgrade, finds tables of another layout in force, and an exchange some that are too small (grow.go). It
// makes its own beside them, and
//
//  1. copies everything, ids and connections, by the names of fields, while the others serve; what cannot be read is left, and
//     the others serve until these tables were published to completely;
//  2. puts its own in force (TakeOver);
//  3. attaches what translates replies beside the other layout's, copies the connections that are new since, and gives what
//     translates requests the place of the other's, link by link;
//  4. waits for the last run of the others, copies what they made until then, and detaches and removes them.
//
// Whoever is killed on the way is followed by a start that goes on from there, or by one of the other layout that goes back.

// load brings programs and tables into the kernel, with what the tables hold that they take the place of.
func (r *running) load(ctx context.Context) (err error) {
	if r.plan.waiting {
		r.objects, err = bpf.Placeholder()
		return err
	}
	if err := r.open(ctx); err != nil {
		return err
	}
	former := r.objects.Former()
	if len(former) == 0 {
		return nil
	}
	if r.carrier, err = tables.NewCarrier(&r.objects.NearlbMaps, former); err != nil || !r.objects.Fresh() {
		return err
	}
	unread := r.carrier.Tables()
	switch {
	case unread == nil && former[0].Other():
		r.daemon.log.Info("carried tables over from another layout", "layout", former[0].Layout())
		return nil
	case unread == nil:
		r.daemon.log.Info("carried tables over to larger ones")
		return nil
	case !former[0].Other():
		return unread // they serve as they are
	}
	r.daemon.log.Warn("tables of another layout cannot be read: they serve until all Services are published", "error", unread)
	if err := errors.Join(r.carrier.Close(), r.objects.Close()); err != nil { // what was carried so far is thrown away
		return err
	}
	r.carrier = nil
	if err := r.open(ctx); err != nil {
		return err
	}
	r.carrier, err = tables.NewCarrier(&r.objects.NearlbMaps, r.objects.Former())
	return err
}

func (r *running) open(ctx context.Context) (err error) {
	o, request := r.daemon.options, r.daemon.options.request(r.plan)
	switch {
	case r.plan.loaded != nil || r.daemon.loader != nil:
		r.objects, err = r.adopt(ctx, request)
	case o.Load != nil:
		r.objects, err = o.Load(request.options())
	default:
		r.objects, err = bpf.Load(request.options())
	}
	return err
}

// layer3 are the programs of devices without an Ethernet header, loaded when the first such device is there.
func (r *running) layer3(ctx context.Context) (fromNet, toNet *ebpf.Program, err error) {
	if l := r.daemon.loader; l != nil {
		q := r.daemon.options.request(r.plan)
		err = r.programs.AdoptLayer3(func(loaded bpf.Loaded) error {
			q.Layer3 = &loaded
			_, err := l.load(ctx, q)
			return err
		})
	}
	if err != nil {
		return nil, nil, err
	}
	return r.programs.Layer3()
}

// adopt opens what the loader loaded.
func (r *running) adopt(ctx context.Context, q loadRequest) (*bpf.Objects, error) {
	if r.plan.loaded != nil {
		return bpf.Adopt(q.options(), *r.plan.loaded)
	}
	loaded, err := r.daemon.loader.load(ctx, q)
	if err != nil {
		return nil, err
	}
	return bpf.Adopt(q.options(), loaded)
}

// takeOver puts the tables in force, once. They have all that the programs need: from the other layout, or from the objects.
func (r *running) takeOver() error {
	r.leaving.Lock()
	defer r.leaving.Unlock()
	if r.carrier == nil || !r.objects.Fresh() {
		return nil
	}
	r.carry()
	return r.objects.TakeOver()
}

// carryConnections brings over what the programs of other layouts have written until now.
func (r *running) carryConnections() {
	r.leaving.Lock()
	defer r.leaving.Unlock()
	r.carry()
}

func (r *running) carry() {
	if r.carrier == nil {
		return
	}
	done, err := r.carrier.Connections()
	if err != nil {
		r.daemon.log.Warn("carry connections over: some are made again by their next packet", "error", err)
	}
	r.daemon.log.Info("carried connections over", "flows", done.Flows, "affinity", done.Affinity, "sockets", done.Sockets, "left", done.Left)
}

// formerLinks are the links of other layouts, as long as there are any.
func (r *running) formerLinks() []string {
	r.leaving.Lock()
	defer r.leaving.Unlock()
	if r.carrier == nil {
		return nil
	}
	return bpf.FormerLinkDirectories(r.daemon.options.PinPath)
}

// leaveFormer ends an upgrade once all devices and the cgroup have this agent's programs.
func (r *running) leaveFormer() {
	r.leaving.Lock()
	defer r.leaving.Unlock()
	if r.carrier == nil || !closed(r.devices.Tried()) || !closed(r.socketHooks.Tried()) {
		return
	}
	if failed := r.unreplaced(); failed != "" {
		r.trouble("remove former tables", fmt.Errorf("these and their programs stay as long as one of them may be the only one in its place: %s", failed))
		return
	}
	r.awaitFormer()
	r.carry() // what our programs handed to the former ones until now, they find here from now on
	err := r.objects.ForgetFormer()
	r.awaitFormer()
	r.carry()
	if err := r.carrier.Peers(r.everywhere); err != nil {
		r.daemon.log.Warn("carry over what sockets of the node keep: their peers are backends to them", "error", err)
	}
	r.leave() // backends of theirs may have stopped serving meanwhile
	if err = errors.Join(err, r.devices.LeaveFormer()); err == nil {
		err = r.removeFormer()
	}
	if r.trouble("remove former tables", err) {
		r.daemon.log.Error("remove former tables", "error", err)
	}
	if err == nil {
		_ = r.carrier.Close() // its memory alone
		r.carrier = nil
		r.daemon.log.Info("the former programs and tables are gone")
	}
}

// removeFormer ends what runs beside our programs, and brings over what it saw and made until then.
func (r *running) removeFormer() error {
	r.objects.DetachFormer()
	r.awaitFormer()
	r.carry()
	if err := r.objects.ForgetFormerReplies(); err != nil {
		return err
	}
	r.awaitFormer()
	return r.objects.RemoveFormer()
}

// awaitFormer waits until no processor runs a program that was replaced.
func (r *running) awaitFormer() {
	if err := bpf.WaitForPrograms(); err != nil {
		r.daemon.log.Warn("wait for the former programs", "error", err)
	}
}

// unreplaced is why a program of another layout may be the only one in its place; "" if none is.
func (r *running) unreplaced() string {
	for _, row := range slices.Concat(r.devices.Devices(), r.socketHooks.Rows()) {
		if row.Error != "" {
			return row.Error
		}
	}
	return ""
}
