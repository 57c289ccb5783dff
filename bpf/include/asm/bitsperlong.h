/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#define __BITS_PER_LONG 64
#include <asm-generic/bitsperlong.h>
