// SPDX-License-Identifier: Apache-2.0

// Package bpf loads the BPF programs and tables, pins them and opens them again. The generated files beside it are the
// object itself; layouts, verdict names and knobs come from its BTF, so that C stays their only source.
package bpf
