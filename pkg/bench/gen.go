// SPDX-License-Identifier: Apache-2.0

package bench

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -mcpu=v3 -I../../bpf/include" -type cursor -type frame Bench ../../bpf/bench.c
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -mcpu=v3 -I../../bpf/include" -type peer_key -type peer_flow Peers ../../bpf/bench_peers.c
