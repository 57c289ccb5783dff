/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What may be decided for a packet, and where. */
#pragma once

#include <stdbool.h>

/* What was decided for a packet. Ordered: continue, pass, translate, reject, drop; Go takes the class of a verdict
 * from its prefix and its contract name (lower case, without the class) from this enum's BTF. */
enum verdict {
	VERDICT_CONTINUE = 0, /* not decided yet: never counted */

	/* left as it is */
	VERDICT_PASS_NOT_IP,      /* ARP, VLAN-tagged frames, anything that is not IPv4 or IPv6 */
	VERDICT_PASS_NOT_SERVICE, /* no frontend, no flow */
	VERDICT_PASS_PROTOCOL,    /* neither TCP, UDP, SCTP nor ICMP */
	VERDICT_PASS_MALFORMED,   /* headers do not fit the packet; the stack judges it */
	VERDICT_PASS_FRAGMENT,    /* later fragment of a packet that was not translated */
	VERDICT_PASS_DIRECT,      /* pod to pod without a service, remembered so that its ports stay apart */
	VERDICT_PASS_ICMP,        /* ICMP that quotes nothing of ours */
	VERDICT_PASS_DISABLED,    /* the agent switched the datapath off */
	VERDICT_PASS_DRAINING,    /* new, and the node's connections are being handed over to kube-proxy */
	VERDICT_PASS_OTHER_NAT,   /* of a connection that the kernel's NAT translates, for kube-proxy */
	VERDICT_PASS_UNKNOWN_REPLY, /* from a backend to a port of SNAT, and no flow has it: the host's, or of a flow that was lost */

	/* addresses or ports were rewritten */
	VERDICT_TRANSLATE_ESTABLISHED, /* a flow was found, towards the backend */
	VERDICT_TRANSLATE_REPLY,       /* a flow was found, towards the client */
	VERDICT_TRANSLATE_BALANCE,     /* new flow: a backend was picked by Maglev */
	VERDICT_TRANSLATE_AFFINITY,    /* new flow: session affinity named the backend */
	VERDICT_TRANSLATE_RECOVER,     /* mid-connection packet without a flow: made again by Maglev */
	VERDICT_TRANSLATE_REHOME,      /* the flow's backend is not usable any more: another was picked */
	VERDICT_TRANSLATE_RETRY,    /* the flow's backend did not answer the SYN, or refused it: the next one gets it */
	VERDICT_TRANSLATE_HAIRPIN,  /* client and backend are one pod; returned on the device it came from */
	VERDICT_TRANSLATE_FRAGMENT, /* later fragment: follows the first */
	VERDICT_TRANSLATE_ICMP,     /* ICMP error: outer and quoted packet rewritten */
	VERDICT_TRANSLATE_DIRECT,   /* direct pod to pod packet whose source port had to change (port clash) */

	/* answered to the sender at once: TCP RST, ICMP port unreachable, an echo reply, or a name's answer */
	VERDICT_REJECT_NO_ENDPOINTS, /* service without any usable endpoint */
	VERDICT_REJECT_UNKNOWN_PORT, /* known service address, no such port */
	VERDICT_REJECT_NO_TOPOLOGY_MATCH,
	VERDICT_REJECT_ECHO,          /* echo request to a service address: answered */
	VERDICT_REJECT_NAME,          /* question for a name: answered in the place of this node's responder */
	VERDICT_REJECT_TOO_BIG,       /* does not fit the device it would leave by; the sender is told the MTU */
	VERDICT_REJECT_TIME_EXCEEDED, /* its TTL or hop limit ends here; the sender is told */
	VERDICT_REJECT_HELLO,         /* another node asks whether this one takes packets out of the tunnel: it does */
	VERDICT_REJECT_LATE_ANSWER,   /* to a SYN that went to another backend since: the sender is told to forget it */

	/* gone */
	VERDICT_DROP_NO_LOCAL_ENDPOINTS, /* traffic policy Local, endpoints elsewhere only */
	VERDICT_DROP_UNALLOCATED,        /* address inside a service CIDR that no service has */
	VERDICT_DROP_SOURCE_RANGE,       /* loadBalancerSourceRanges does not name the source */
	VERDICT_DROP_MALFORMED,          /* would be ours, but its headers contradict each other */
	VERDICT_DROP_FRAGMENT,           /* later fragment to a service address whose first was not seen */
	VERDICT_DROP_FLOWS_FULL,         /* the set has no entry that may be evicted */
	VERDICT_DROP_FLOW_RACE,          /* lost the race for a flow entry several times over */
	VERDICT_DROP_PORTS_FULL,         /* no free source port towards this backend */
	VERDICT_DROP_NO_BACKEND,         /* the record names backends, none of them usable */
	VERDICT_DROP_SCTP_PORT,          /* SCTP whose port would have to change: its checksum cannot be mended here */
	VERDICT_DROP_REWRITE,            /* the kernel refused to change the packet */
	VERDICT_DROP_NO_PROGRAM,         /* a tail call failed */
	VERDICT_DROP_NO_ROUTE,           /* the routing table has no way to the backend or the client */
	VERDICT_DROP_FORWARDING_OFF,     /* the kernel may not forward from this device (ip_forward) */
	VERDICT_DROP_NO_SOURCE,          /* no address of this node for SNAT on the device towards the backend */
	VERDICT_DROP_ICMP_LIMIT,       /* an ICMP error would answer it, and this processor has made too many of them */
	VERDICT_DROP_TUNNEL_SOURCE,    /* to a node's tunnel, from somebody who is no node */
	VERDICT_DROP_TUNNEL_MALFORMED, /* in the tunnel, and not as a node writes it */
	VERDICT_DROP_TUNNEL_STRAY, /* in the tunnel, of no connection that is known here, and for no backend of this node */

	VERDICT_MAX,
};

/* Which door a packet came through: first index of the verdict counters. */
enum hook {
	HOOK_FROM_POD = 0,
	HOOK_TO_POD,
	HOOK_FROM_NET,
	HOOK_TO_NET,
	HOOK_SOCK,
	HOOK_XDP, /* in front of from_net, where a device has it */
	HOOK_MAX,
};

/* The classes of verdicts. */

static __always_inline bool verdict_is_translate(enum verdict verdict)
{
	return verdict >= VERDICT_TRANSLATE_ESTABLISHED && verdict < VERDICT_REJECT_NO_ENDPOINTS;
}

/* A service refuses the packet. Echo replies and what a router answers are no refusals. */
static __always_inline bool verdict_is_reject(enum verdict verdict)
{
	return verdict >= VERDICT_REJECT_NO_ENDPOINTS && verdict < VERDICT_REJECT_ECHO;
}

static __always_inline bool verdict_is_drop(enum verdict verdict)
{
	return verdict >= VERDICT_DROP_NO_LOCAL_ENDPOINTS;
}
