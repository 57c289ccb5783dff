/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A made packet stands for the call of a socket of the host: its source for the socket, its destination for the one named.
 * For nearlb trace and tests; nothing is attached. */
#pragma once

#include "parse_full.h"
#include "sock.h"

static __always_inline void sock_trace(const struct sock_request *request, const struct sock_answer *answer)
{
	struct trace_result *result = trace_get();

	if (!result)
		return;
	result->backend_found = 1;
	result->backend = answer->choice.backend;
	result->source = request->source;
}

static __always_inline enum verdict sock_explain_packet(struct __sk_buff *skb)
{
	const struct settings *settings = settings_get();
	struct sock_request request = { .host = true, .sourced = true };
	struct sock_answer answer = {};
	struct packet packet = {};
	enum verdict verdict = parse_full(skb, &packet);

	if (!settings || verdict != VERDICT_CONTINUE)
		return verdict;
	frontend_key_of(&request.key, &packet);
	request.cookie = maglev_hash(&packet.source, packet.source_port, &request.key);
	request.source = packet.source;
	request.client = packet.family == 4 ? settings->node4 : settings->node6;
	if (address_zero(&request.client))
		request.client = packet.source;
	verdict = sock_decide(&request, &answer);
	if (verdict_is_translate(verdict))
		sock_trace(&request, &answer);
	return verdict;
}
