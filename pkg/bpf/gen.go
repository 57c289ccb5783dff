// SPDX-License-Identifier: Apache-2.0

package bpf

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -mcpu=v3 -I../../bpf/include" -type address -type frontend_key -type record -type backend -type flow -type flow_set -type flow_block -type flow_spill -type flow_overflow -type icmp_budget -type affinity_key -type affinity_value -type source_range_key -type fragment_key -type fragment_value -type verdict_counter -type service_counter -type backend_counter -type name_key -type name_value -type settings -type trace_result -type known_bits -type slot_line -type xdp_device -type xdp_neighbour -type tunnel_end -type tunnel_node -type tunnel_packet -type local_key -type sock_key -type sock_value -type sock_peer -type answer_key -type answer -type answer_settings -type answer_counter -type dns_work Nearlb ../../bpf/nearlb.c
