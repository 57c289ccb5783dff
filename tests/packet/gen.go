// SPDX-License-Identifier: Apache-2.0

// Package packet runs the real BPF programs over made packets by BPF_PROG_TEST_RUN: rows of packet in, verdict, packet out.
package packet

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -mcpu=v3 -I../../bpf/include" -type sample -type tally Stress ../../bpf/stress.c
