// SPDX-License-Identifier: Apache-2.0

package explain

// events are what nearlb changes says, and the causes of nearlb why.
var events = []Word{
	{"backend-added", Change, "a backend takes new connections now", ""},
	{"backend-removed", Change, "a backend takes no new connections any more", "the EndpointSlice that it names says why"},
	{"backend-changed", Change, "a backend is in another state, or nearer or farther", ""},
	{"frontend-added", Change, "an address and port of a Service is served now", ""},
	{"frontend-removed", Change, "an address and port is not served any more", ""},
	{"traffic-changed", Change, "new connections are treated in another way, or for another reason", ""},
	{"policy-changed", Change, "a traffic policy lets other endpoints be used", ""},
	{"affinity-changed", Change, "session affinity came, went or lasts for another time", ""},
	{"weight-changed", Change, "a backend gets another share of new connections, beside the same others", ""},
	{"source-ranges-changed", Change, "there are ranges of clients now that may use the frontend, or none any more", ""},
	{"publication-failed", Change, "a Service could not be published; what was before goes on", "nearlb status names the table and the flag"},
	{"published-again", Change, "a Service that failed before is published", ""},
	{"more-changed", Change, "so many more changes of one publication are not told one by one", ""},
	{"services-published", Change, "after a start: all Services are published", ""},
	{"node-changed", Change, "this node's zone, region or addresses are others now", ""},
	{"tables-grown", Change, "larger tables took the place of nearly full ones; no connection was lost", ""},
	{"agent-started", Change, "an agent started where none had published", ""},
	{"agent-took-over", Change, "an agent started, and took over what one before had published", ""},
	{"agent-stopped", Change, "the agent was told to end; what it published stays in force", ""},

	{"agent-dead", Cause, "no agent follows changes on this node: the tables are as one left them", "start it; nearlb changes says what it did last"},
	{"agent-starting", Cause, "the agent has not published everything yet", "wait, and look at nearlb status"},
	{"publication-failed", Cause, "the Service's last change is not in force: a table is full, or the kernel refused it", "nearlb status names the table and the flag"},
	{"no-such-service", Cause, "no such Service is served here: there is none, or it is headless, an ExternalName, or another proxy's", "kubectl get service"},
	{"no-frontends", Cause, "the Service has no address in force", "nearlb status says which other Service has it, or why there is none"},
	{"unknown-port", Cause, "the Service has no such port: connections to it are refused", "ask for a port that spec.ports has, or add it there"},
	{"no-endpoints", Cause, "no EndpointSlice has an endpoint for the Service", "does spec.selector match the labels of any pod?"},
	{"endpoints-not-ready", Cause, "the Service has endpoints, and none is ready", "kubectl get pods: why are they not ready?"},
	{"endpoints-of-other-ports", Cause, "the Service's endpoints have ports of other names than spec.ports has", "give the ports the same names"},
	{"no-local-endpoints", Cause, "a traffic policy is Local, and no ready endpoint is on this node", "run a pod of it here, send clients to nodes that have one, or set the policy to Cluster"},
	{"source-ranges", Cause, "spec.loadBalancerSourceRanges does not name the client", "add the client's range, or take the field out"},
	{"no-topology-match", Cause, "no endpoint matches the Service's topology keys from this node", "end nearlb.io/topology-keys with *, or run an endpoint that is near"},
	{"wrong-annotation", Cause, "an annotation of the Service is wrong, and is not in force", "mend the object: the message says which values there are"},
	{"problem", Cause, "something of the Service cannot be served as it is written", "mend the object: the message names the field"},
	{"dropped-before", Cause, "packets of this client were refused in the last ten minutes, and go on now", "nearlb changes --since 15m --service SERVICE says what changed since"},
	{"nothing-wrong", Cause, "nearlb sends the client's connections on", "look at the backends, and at NetworkPolicies between the two"},
}
