// SPDX-License-Identifier: Apache-2.0

// Package capability reads what this process may do beyond an ordinary one, and gives away what it does not need
// (capabilities(7)).
package capability

import (
	"fmt"
	"math/bits"
	"strings"

	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// Set is a set of capabilities: bit CAP_x is set for each.
type Set uint64

// Of is the set of these capabilities (unix.CAP_x).
func Of(capabilities ...uint) (s Set) {
	for _, c := range capabilities {
		s |= 1 << c
	}
	return s
}

// Has tells whether the set contains a capability (unix.CAP_x).
func (s Set) Has(capability uint) bool { return s&(1<<capability) != 0 }

// Names are the kernel's, in its order: CAP_NET_ADMIN.
func (s Set) Names() []string {
	list := make([]string, 0, bits.OnesCount64(uint64(s)))
	for c := range uint(64) {
		if s.Has(c) {
			list = append(list, name(cap.Value(c)))
		}
	}
	return list
}

func name(c cap.Value) string {
	if c >= cap.NamedCount {
		return fmt.Sprintf("CAP_%d", c) // of a newer kernel than the library
	}
	return strings.ToUpper(c.String())
}

// Effective is what the calling thread may do now, as every thread of this process unless somebody changed one.
func Effective() (set Set, err error) {
	own, err := cap.GetPID(0)
	if err != nil {
		return 0, fmt.Errorf("read capabilities: %w", err)
	}
	for c := range cap.MaxBits() {
		if has, err := own.GetFlag(cap.Effective, c); err == nil && has {
			set |= Of(uint(c))
		}
	}
	return set, nil
}
