/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Connections that the kernel's own NAT translates, for kube-proxy: connection tracking knows their other side, and their packets
 * are left to it. */
#pragma once

#include "config.h"
#include "packet.h"
#include "settings.h"

/* The kernel's, as far as they are used here. */
union nf_inet_addr {
	__u32 all[4];
} __attribute__((preserve_access_index));

union nf_conntrack_man_proto {
	__be16 all;
} __attribute__((preserve_access_index));

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
} __attribute__((preserve_access_index));

struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
} __attribute__((preserve_access_index));

struct bpf_ct_opts {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

enum conntrack_direction {
	CONNTRACK_ORIGINAL = 0,
	CONNTRACK_REPLY,
};

enum conntrack_status {
	CONNTRACK_SEEN_REPLY = 2,
	CONNTRACK_ASSURED = 4, /* TCP: the handshake is done */
};

/* Linux 5.18; of the module nf_conntrack where that is one: not there unless it was loaded before the programs. TCP and UDP only. */
extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 tuple_size,
					 struct bpf_ct_opts *opts, __u32 opts_size) __ksym __weak;
extern struct nf_conn *bpf_xdp_ct_lookup(struct xdp_md *xdp, struct bpf_sock_tuple *tuple, __u32 tuple_size,
					 struct bpf_ct_opts *opts, __u32 opts_size) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *connection) __ksym __weak;

/* Both ends of a packet. */
struct ends {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol; /* IANA number */
	__u8 pad[3];
};

static __always_inline void ends_of(struct ends *ends, const struct packet *packet)
{
	ends->source = packet->source;
	ends->destination = packet->destination;
	ends->source_port = packet->source_port;
	ends->destination_port = packet->destination_port;
	ends->protocol = packet->protocol;
}

/* The knob alone tells: the address of a module's function cannot be asked for as that of a function of the kernel's. */
static __always_inline bool conntrack_there(void)
{
	return conntrack_lookup;
}

/* ctx: of the program at XDP if xdp says so, a constant; else struct __sk_buff. The same of the functions below. */
static __always_inline struct nf_conn *conntrack_ask(void *ctx, bool xdp, struct bpf_sock_tuple *tuple, __u32 size,
						     struct bpf_ct_opts *opts)
{
	return xdp ? bpf_xdp_ct_lookup(ctx, tuple, size, opts, sizeof(*opts))
		   : bpf_skb_ct_lookup(ctx, tuple, size, opts, sizeof(*opts));
}

static __always_inline struct nf_conn *conntrack_find4(void *ctx, bool xdp, const struct ends *ends,
						       struct bpf_ct_opts *opts)
{
	struct bpf_sock_tuple tuple = {};

	tuple.ipv4.saddr = address_to4(&ends->source);
	tuple.ipv4.daddr = address_to4(&ends->destination);
	tuple.ipv4.sport = ends->source_port;
	tuple.ipv4.dport = ends->destination_port;
	return conntrack_ask(ctx, xdp, &tuple, sizeof(tuple.ipv4), opts);
}

static __always_inline struct nf_conn *conntrack_find6(void *ctx, bool xdp, const struct ends *ends,
						       struct bpf_ct_opts *opts)
{
	struct bpf_sock_tuple tuple = {};

	__builtin_memcpy(tuple.ipv6.saddr, &ends->source, sizeof(tuple.ipv6.saddr));
	__builtin_memcpy(tuple.ipv6.daddr, &ends->destination, sizeof(tuple.ipv6.daddr));
	tuple.ipv6.sport = ends->source_port;
	tuple.ipv6.dport = ends->destination_port;
	return conntrack_ask(ctx, xdp, &tuple, sizeof(tuple.ipv6), opts);
}

/* Of the network namespace of the packet's device, in the default zone. To be released; NULL: not known. */
static __always_inline struct nf_conn *conntrack_find(void *ctx, bool xdp, const struct ends *ends,
						      struct bpf_ct_opts *opts)
{
	if (!conntrack_there())
		return NULL;
	opts->netns_id = BPF_F_CURRENT_NETNS;
	opts->l4proto = ends->protocol;
	return address_family(&ends->source) == 4 ? conntrack_find4(ctx, xdp, ends, opts)
						  : conntrack_find6(ctx, xdp, ends, opts);
}

/* Who answers a connection. */
static __always_inline __be16 conntrack_server(const struct nf_conn *connection, __u8 family, struct address *address)
{
	const struct nf_conntrack_man *server = &connection->tuplehash[CONNTRACK_REPLY].tuple.src;

	if (family == 4) {
		address_from4(address, server->u3.all[0]);
	} else {
		address->words[0] = server->u3.all[0];
		address->words[1] = server->u3.all[1];
		address->words[2] = server->u3.all[2];
		address->words[3] = server->u3.all[3];
	}
	return server->u.all;
}

/* True if the server is not the address that the client named: the kernel's NAT translates the connection. A connection in its handshake
 * stays with the server that got the SYN; datagrams stay with a server that answered while it is a backend. */
static __always_inline bool conntrack_holds(const struct nf_conn *connection, const struct packet *packet)
{
	struct address server;
	__be16 port = conntrack_server(connection, packet->family, &server);

	if (port == packet->destination_port && address_equal(&server, &packet->destination))
		return false;
	if (packet->protocol == IPPROTO_UDP)
		return connection->status & CONNTRACK_SEEN_REPLY && known_backend(&server, port, filter_seed());
	return !opens_connection(packet) || !(connection->status & CONNTRACK_ASSURED);
}

/* Not 0: the kernel's NAT translates the connection of this packet of a client. A function of its own for the sake of the stack. */
__noinline int conntrack_translates(struct __sk_buff *skb, const struct packet *packet)
{
	struct bpf_ct_opts opts = {};
	struct nf_conn *connection;
	struct ends ends;
	bool holds;

	if (!packet)
		return false;
	ends_of(&ends, packet);
	connection = conntrack_find(skb, false, &ends, &opts);
	if (!connection)
		return false;
	holds = opts.dir == CONNTRACK_ORIGINAL && conntrack_holds(connection, packet);
	bpf_ct_release(connection);
	return holds;
}

/* What the kernel knows of a packet's connection. */
enum conntrack_known {
	CONNTRACK_UNKNOWN = 0,
	CONNTRACK_OPENED,   /* the packet is of who opened it, */
	CONNTRACK_ANSWERED, /* of the other side */
};

static __always_inline enum conntrack_known conntrack_side(void *ctx, bool xdp, const struct ends *ends)
{
	struct bpf_ct_opts opts = {};
	struct nf_conn *connection = ends ? conntrack_find(ctx, xdp, ends, &opts) : NULL;

	if (!connection)
		return CONNTRACK_UNKNOWN;
	bpf_ct_release(connection);
	return opts.dir == CONNTRACK_ORIGINAL ? CONNTRACK_OPENED : CONNTRACK_ANSWERED;
}

/* enum conntrack_known. Functions of their own for the sake of the stack. */
__noinline int conntrack_knows(struct __sk_buff *skb, const struct ends *ends)
{
	return conntrack_side(skb, false, ends);
}

__noinline int conntrack_knows_xdp(struct xdp_md *ctx, const struct ends *ends)
{
	return conntrack_side(ctx, true, ends);
}

/* Packets to a frontend that have no flow are left to kube-proxy if their connection is kube-proxy's; while the node drains, new
 * connections are as well. Beside kube-proxy each connection stays with the one that has it, whichever takes the new ones. */

/* Somebody else translates the connection. Connection tracking cannot be asked for SCTP: what is not new, and has no flow, is not
 * ours. */
static __always_inline bool leave_other(struct __sk_buff *skb, const struct settings *settings,
					const struct packet *packet)
{
	__u32 wanted = opens_connection(packet) || packet->protocol == IPPROTO_SCTP ? YIELD_NEW : YIELD_OLD;

	if (!(settings->yield & wanted) && !settings->draining)
		return false;
	return packet->protocol == IPPROTO_SCTP ? !opens_connection(packet) : conntrack_translates(skb, packet);
}

/* True for a new connection, and for a packet whose owner is unknown. */
static __always_inline bool leave_new(const struct settings *settings, const struct packet *packet)
{
	return settings->draining && (opens_connection(packet) || !conntrack_there());
}

/* VERDICT_CONTINUE: it is for us. A function of its own for the sake of the stack. */
__noinline int leave(struct __sk_buff *skb, const struct packet *packet)
{
	const struct settings *settings = settings_get();
	enum verdict verdict = VERDICT_CONTINUE;

	if (!settings || !packet)
		return VERDICT_CONTINUE;
	if (leave_other(skb, settings, packet))
		verdict = VERDICT_PASS_OTHER_NAT;
	else if (leave_new(settings, packet))
		verdict = VERDICT_PASS_DRAINING;
	if (verdict != VERDICT_CONTINUE)
		fragment_remember(packet);
	return verdict;
}
