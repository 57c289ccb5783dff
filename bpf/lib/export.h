/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Types that Go takes from BTF although no map has them: BTF keeps what something refers to. */
#pragma once

#include "types.h"

#define EXPORT_ENUM(name) volatile const enum name export_##name

EXPORT_ENUM(verdict);
EXPORT_ENUM(hook);
EXPORT_ENUM(side_index);
EXPORT_ENUM(action);
EXPORT_ENUM(reason);
EXPORT_ENUM(note);
EXPORT_ENUM(backend_state);
EXPORT_ENUM(tier_name);
EXPORT_ENUM(member);
EXPORT_ENUM(kind);
EXPORT_ENUM(record_flags);
EXPORT_ENUM(flow_phase);
EXPORT_ENUM(flow_flags);
EXPORT_ENUM(flow_seen);
EXPORT_ENUM(name_kind);
EXPORT_ENUM(event_kind);
EXPORT_ENUM(program);
EXPORT_ENUM(schema);
EXPORT_ENUM(yield);
volatile const struct event export_event;
