/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* linux/types.h wants the machine's own; for the BPF target the generic one is right on every machine. */
#include <asm-generic/types.h>
