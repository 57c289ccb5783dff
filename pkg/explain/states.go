// SPDX-License-Identifier: Apache-2.0

package explain

// states are those of backends, of flows and of agents.
var states = []Word{
	{"active", State, "takes new connections where a tier has it, and keeps its old ones", ""},
	{"draining", State, "terminating and still serving: keeps its connections, and takes new ones only where no other endpoint is ready", ""},
	{"quiet", State, "not serving: established TCP connections stay, everything else goes to others", "kubectl describe pod: why is it not ready?"},
	{"responder", State, "what answers names on this node: active while the agent lives and its socket takes questions, else quiet", ""},
	{"ejected", State, "new connections leave it out for a while, as it did not answer some and the agent's own question; open ones stay", "its pod's logs, and NetworkPolicies; nearlb backends -o wide says until when and why, nearlb backends readmit takes it back"},
	{"gone", State, "no endpoint any more; kept while connections name it", ""},
	{"free", State, "nobody's: the entry has no backend", ""},
	{"stale", State, "the connection's backend is gone, and its number is another one's by now", "the client's next packet gets another backend; of TCP, the connection ends"},

	{"new", Flow, "nothing came back yet", "many that stay new: the backend does not answer; nearlb flows --state new --group-by backend"},
	{"answered", Flow, "the server answered; of TCP: the handshake is not done", ""},
	{"open", Flow, "an established connection", ""},
	{"closing", Flow, "one side has closed", "many of them for long: a server or a client does not close its sockets"},
	{"closed", Flow, "both sides have closed", ""},
	{"reset", Flow, "one side reset it", "many of them: the server refuses or aborts; its logs"},
	{"expired", Flow, "silent for longer than its protocol and state may be: its entry is free", ""},

	{"reply", Seen, "a packet came back", ""},
	{"client-fin", Seen, "TCP: the client closed", ""},
	{"server-fin", Seen, "TCP: the server closed", ""},
	{"reset", Seen, "TCP: one side reset the connection, and neither went on", ""},
	{"established", Seen, "TCP: one side went on after the server's answer", ""},
	{"server-waits", Seen, "TCP: the server closed first, and keeps the port for a minute (TIME_WAIT)", ""},
	{"client-waits", Seen, "TCP: the client closed first, and went on after both had closed: its server has forgotten the connection; UDP: the client sent something after an answer", ""},
	{"refused", Seen, "TCP: the server answered the SYN with a reset", "is the port open in the pod? nearlb backends"},

	{"alias", Flag, "the second entry of a connection whose source port had to change, by the port that the backend sees", ""},
	{"direct", Flag, "to a backend's own address, by no Service: kept so that its ports stay apart from others'", ""},
	{"hairpin", Flag, "client and backend are one pod, which sees the service loopback address as its peer", ""},
	{"snat", Flag, "the client is off the node and the backend on another one: it sees an address of this node", ""},
	{"carry", Flag, "the client is off the node and the backend on another one: packets go there through the tunnel between nodes, and the backend sees the client's own address", ""},
	{"carried", Flag, "the client came by another node and the tunnel, and answers go back there", ""},
	{"dsr", Flag, "beside carry or carried: the backend's node answers the client itself, past the node that it came by", ""},
	{"asks", Flag, "UDP datagrams are counted until the backend answers (nearlb.io/udp-retry)", ""},

	{"starting", Agent, "not all objects are listed and published, or not all programs attached; what was published before serves", "wait; nearlb status says what it waits for"},
	{"serving", Agent, "everything that was listed is in force, and changes are followed", ""},
	{"stopped", Agent, "ended on purpose; what it published goes on serving, and nobody follows changes", "start it: kubectl -n kube-system get pods -l app.kubernetes.io/name=nearlb -o wide"},

	{"table_full", Failure, "a table has no room for the Service, which keeps what was published before", "nearlb status names the table; raise the agent's --size flag of it"},
	{"kernel", Failure, "the kernel refused to write a table; it is tried again", "nearlb status has the error; nearlb check looks at the node"},
}
