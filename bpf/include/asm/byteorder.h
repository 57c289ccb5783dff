/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Both targets are little-endian. */
#include <linux/byteorder/little_endian.h>
