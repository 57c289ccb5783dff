// SPDX-License-Identifier: Apache-2.0

// Package privileged is tests/privileged under its first name; new code imports that one, which packages outside tests can.
package privileged

import (
	"testing"

	"github.com/nearlb/nearlb/tests/privileged"
)

// Require is privileged.Require.
func Require(t testing.TB) { t.Helper(); privileged.Require(t) }

// Bpffs is privileged.Bpffs.
func Bpffs(t testing.TB) string { t.Helper(); return privileged.Bpffs(t) }
