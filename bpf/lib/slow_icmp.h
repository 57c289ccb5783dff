/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ICMP and ICMPv6 of both directions. */
#pragma once

#include "echo.h"
#include "filter.h"
#include "icmp.h"
#include "refuse.h"

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

/* The pod sends an error about a packet that it got: as a client, or as the server of a hairpin flow. */
static __always_inline enum verdict icmp_error_from_pod(struct __sk_buff *skb, struct icmp *icmp,
							const struct settings *settings)
{
	bool hairpin;

	if (!quote_parse(skb, icmp))
		return VERDICT_PASS_ICMP;
	hairpin = is_hairpin_address(settings, icmp->answer.family, &icmp->answer.destination);
	if (!(hairpin ? icmp_find_reply(icmp, settings) : icmp_find_forward(icmp, settings)))
		return VERDICT_PASS_ICMP;
	return icmp_translate(skb, icmp);
}

static __always_inline enum verdict icmp_echo(struct __sk_buff *skb, struct icmp *icmp)
{
	const struct packet *packet = &icmp->outer;

	if (!known_frontend(&packet->destination) || !frontend_find_address(&packet->destination))
		return service_cidr_has(&packet->destination) ? VERDICT_DROP_UNALLOCATED : VERDICT_PASS_ICMP;
	if (packet->fragment != FRAGMENT_NONE)
		return VERDICT_DROP_FRAGMENT;
	icmp->back = echo_answer(skb, packet);
	return VERDICT_REJECT_ECHO;
}

static __always_inline enum verdict icmp_from_pod(struct __sk_buff *skb, struct icmp *icmp)
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
	return is_icmp_error(&icmp->outer, type) ? icmp_error_from_pod(skb, icmp, settings) : VERDICT_PASS_ICMP;
}

static __always_inline enum verdict icmp_to_pod(struct __sk_buff *skb, struct icmp *icmp)
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
