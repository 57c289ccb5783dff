/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ICMP and ICMPv6 of both directions. */
#pragma once

#include "echo.h"
#include "filter.h"
#include "icmp.h"
#include "refuse.h"
#include "snat_range.h"

/* VERDICT_CONTINUE: type is set, the packet is whole. */
static __always_inline enum verdict icmp_parse(struct __sk_buff *skb, struct icmp *icmp, __u8 *type)
{
	enum verdict verdict = parse_full(skb, &icmp->outer);

	if (verdict != VERDICT_CONTINUE)
		return verdict;
	if (icmp->outer.fragment == FRAGMENT_LATER)
		return VERDICT_PASS_FRAGMENT;
	if (icmp->outer.malformed || bpf_skb_load_bytes(skb, icmp->outer.l4, type, 1))
		return VERDICT_PASS_MALFORMED;
	return VERDICT_CONTINUE;
}

/* An error from the client's side about a packet that came from a server. A pod may also be the server of a hairpin flow; from
 * the network also comes what routers say about packets that left by SNAT. */
static __always_inline enum verdict icmp_error_forward(struct __sk_buff *skb, struct icmp *icmp,
						       const struct settings *settings, enum hook hook)
{
	bool hairpin;

	if (!quote_parse(skb, icmp))
		return VERDICT_PASS_ICMP;
	hairpin = hook == HOOK_FROM_POD && is_hairpin_address(settings, icmp->answer.family, &icmp->answer.destination);
	if (hook == HOOK_FROM_NET && in_snat_range(settings, icmp->answer.destination_port) &&
	    icmp_find_snat(icmp, settings))
		return icmp_translate(skb, icmp);
	if (!(hairpin ? icmp_find_reply(icmp, settings) : icmp_find_forward(icmp, settings)))
		return VERDICT_PASS_ICMP;
	return icmp_translate(skb, icmp);
}

static __always_inline enum verdict icmp_echo(struct __sk_buff *skb, struct icmp *icmp)
{
	const struct packet *packet = &icmp->outer;

	if (!known_frontend(&packet->destination) || !frontend_find_address(&packet->destination))
		return service_cidr_has(&packet->destination) && !node_drains() ? VERDICT_DROP_UNALLOCATED
										: VERDICT_PASS_ICMP;
	if (node_drains())
		return VERDICT_PASS_DRAINING;
	if (packet->fragment != FRAGMENT_NONE)
		return VERDICT_DROP_FRAGMENT;
	icmp->back = echo_answer(skb, packet);
	return VERDICT_REJECT_ECHO;
}

/* hook: a constant, the door of a client. */
static __always_inline enum verdict icmp_forward(struct __sk_buff *skb, struct icmp *icmp, enum hook hook)
{
	const struct settings *settings = settings_get();
	enum verdict verdict;
	__u8 type = 0;

	if (!settings)
		return VERDICT_PASS_DISABLED;
	verdict = icmp_parse(skb, icmp, &type);
	if (verdict == VERDICT_PASS_FRAGMENT && is_service_address(&icmp->outer.destination))
		return VERDICT_DROP_FRAGMENT;
	if (verdict != VERDICT_CONTINUE)
		return verdict;
	if (is_echo_request(&icmp->outer, type))
		return icmp_echo(skb, icmp);
	return is_icmp_error(&icmp->outer, type) ? icmp_error_forward(skb, icmp, settings, hook) : VERDICT_PASS_ICMP;
}

static __always_inline enum verdict icmp_reply(struct __sk_buff *skb, struct icmp *icmp)
{
	const struct settings *settings = settings_get();
	enum verdict verdict;
	__u8 type = 0;

	if (!settings)
		return VERDICT_PASS_DISABLED;
	verdict = icmp_parse(skb, icmp, &type);
	if (verdict != VERDICT_CONTINUE)
		return verdict;
	if (!is_icmp_error(&icmp->outer, type) || !quote_parse(skb, icmp) || !icmp_find_reply(icmp, settings))
		return VERDICT_PASS_ICMP;
	return icmp_translate(skb, icmp);
}
