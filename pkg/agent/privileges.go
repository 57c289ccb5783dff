// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/capability"
)

// dropPrivileges gives away what was for the start alone, and notes what is left. PERFMON, with which a program may read the
// kernel's memory, goes: what is to be loaded from now on, the loader loads. Without one the agent keeps all until the first list
// tells how large its tables are, and its programs are loaded.
func (d *daemon) dropPrivileges(r *running) error {
	if d.dropped || r.plan.waiting && len(d.options.Loader) == 0 {
		return nil
	}
	had, err := capability.Effective()
	if err != nil {
		return err
	}
	if !d.options.DropPrivileges {
		d.dropped, d.may = true, had.Names()
		return nil
	}
	if len(d.options.Loader) > 0 && d.loader == nil {
		if d.loader, err = startLoader(d.options.Loader, d.diary.tell); err != nil {
			d.log.Warn("start a process that may load programs: tables do not grow", "error", err)
		}
	}
	keep := d.options.needs(had)
	if d.loader == nil {
		if r.plan.waiting {
			return nil
		}
		if _, _, err := r.objects.Layer3(); err != nil {
			d.log.Warn("load programs ahead of a device that wants them", "error", err)
			keep |= capability.Of(unix.CAP_PERFMON)
		}
	}
	kept, err := capability.Keep(keep)
	d.dropped, d.may = true, kept.Names()
	if err != nil { // the agent works as well with more than it needs
		d.log.Warn("drop privileges", "error", err)
	}
	return nil
}

// needs are the capabilities that a running agent uses, of those that it has.
func (o Options) needs(had capability.Set) capability.Set {
	needs := capability.Of(
		unix.CAP_BPF,              // iterators and links
		unix.CAP_NET_ADMIN,        // to attach to devices that come, to ask what is attached, and to end sockets
		unix.CAP_NET_BIND_SERVICE, // health check node ports below 1024
	)
	if o.Manifests != "" || o.Kubeconfig != "" {
		needs |= capability.Of(unix.CAP_DAC_READ_SEARCH) // files that belong to somebody else than root
	}
	if o.SocketLB == attach.AllSockets {
		needs |= capability.Of(unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE) // into the network namespaces of pods, found by their processes
	}
	if !had.Has(unix.CAP_BPF) {
		needs |= capability.Of(unix.CAP_SYS_ADMIN) // which stands for BPF where a container's runtime does not know that one
	}
	return needs & had
}
