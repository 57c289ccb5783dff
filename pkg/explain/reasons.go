// SPDX-License-Identifier: Apache-2.0

package explain

// reasons are what pkg/lb spells: why a rule has the backends that it has, why an endpoint is in it or not, and what keeps a preference
// from being in force; and why traffic leaves its zone, which nearlb zones says beside these.
var reasons = []Word{
	{"all", Reason, "ready, and nothing keeps the traffic nearer", ""},
	{"same-node", Reason, "on {node} or hinted for it", ""},
	{"same-zone", Reason, "in {zone} or hinted for it", ""},
	{"same-region", Reason, "in {region}", ""},
	{"same-label", Reason, "its Node has the same label as this one (topology keys)", ""},
	{"local-fallback", Reason, "traffic policy Local finds none on this node, and the Service asks for any then", ""},
	{"terminating", Reason, "terminating but serving, and no endpoint is ready", "kubectl get pods: why is no pod of it ready?"},
	{"local", Reason, "ready on this node, where traffic policy Local keeps the traffic", ""},
	{"local-terminating", Reason, "terminating but serving, and none on this node is ready (traffic policy Local)", "kubectl get pods: why is no pod of it on this node ready?"},
	{"no-endpoints", Reason, "the Service has no endpoint that is ready, or serving as it terminates: connections are refused", "does spec.selector match the labels of any pod, and is one ready? nearlb why CLIENT SERVICE"},
	{"no-local-endpoints", Reason, "traffic policy Local, and no usable endpoint is on this node: packets are dropped", "send clients to nodes that have one, run one here, or set the policy to Cluster"},
	{"no-topology-match", Reason, "no topology key of the Service allows it from this node", "end nearlb.io/topology-keys with *, or run an endpoint that is near"},

	{"not-ready", Reason, "its condition ready is false", "kubectl describe pod: its readiness probe, or its start"},
	{"overflow", Reason, "of another zone, and gets some of this one's connections: annotation nearlb.io/overflow", ""},
	{"weight-zero", Reason, "no new connections: annotation nearlb.io/weight of its slice is 0", "raise the weight, if it should get some"},
	{"not-serving", Reason, "terminating, and its condition serving is false", ""},
	{"is-terminating", Reason, "terminating, and others are ready", ""},
	{"other-node", Reason, "not on {node}, or not hinted for it, and the traffic stays there", ""},
	{"other-zone", Reason, "not in {zone}, or not hinted for it, and the zone has its own", ""},
	{"other-region", Reason, "not in {region}, which has its own", ""},
	{"other-label", Reason, "its Node lacks the label that decides, or has another value (topology keys)", ""},
	{"duplicate", Reason, "another copy of this address has the better condition", "two EndpointSlices name the address: which one is old?"},
	{"no-address", Reason, "it has no address or no port number to send to", "mend the EndpointSlice; a port without a number means all ports, which no Service can use"},
	{"no-service-port", Reason, "the Service has no port of this name and protocol", "give ports of Service and EndpointSlice the same names"},
	{"no-frontend-of-family", Reason, "the Service has no address of this family", "spec.ipFamilies of the Service says which it has"},
	{"no-service", Reason, "no such Service is served", "is it headless, an ExternalName, or another proxy's (label service.kubernetes.io/service-proxy-name)?"},

	{"no-hints", Note, "the Service asks for near endpoints, but its EndpointSlices have no hints", "the annotation nearlb.io/traffic-distribution needs none; or ask why the slice controller gives none"},
	{"endpoint-without-hint", Note, "hints are not in force: a ready endpoint has none", "the annotation nearlb.io/traffic-distribution needs none; slices that are not the controller's need hints for all endpoints"},
	{"node-without-zone", Note, "the preference for a zone is not in force: {node} has none", "kubectl label node NODE topology.kubernetes.io/zone=ZONE"},
	{"no-endpoint-in-zone", Note, "the preference for a zone is not in force: no ready endpoint is in {zone} or hinted for it", "run a pod of it there: topologySpreadConstraints"},
	{"no-endpoint-on-node", Note, "hints are not in force: none is for {node}", "run a pod of it on each node (DaemonSet), or prefer the zone"},
	{"overflow", Note, "the zone has fewer endpoints than its clients need: others get the rest (nearlb.io/overflow)", "run more endpoints in the zone, or raise the annotation"},
	{"no-key-matched", Note, "of the Service's topology keys only * matches an endpoint", "run an endpoint that another key allows"},

	{"balance", Action, "new connections are spread over the backends of the nearest tier", ""},
	{"reject", Action, "new connections are refused at once: TCP reset, ICMP port unreachable", "the reason beside it says why"},
	{"drop", Action, "packets of new connections are dropped", "the reason beside it says why"},

	{"node", Tier, "on {node}", ""},
	{"zone", Tier, "in {zone}, and not on {node}", ""},
	{"region", Tier, "in {region}, and not in {zone}", ""},
	{"cluster", Tier, "anywhere else, or nobody knows where", ""},

	{"no-preference", Crossed, "the Service does not ask for near endpoints, so all get the same", "set spec.trafficDistribution: PreferClose, or the annotation nearlb.io/traffic-distribution"},
	{"none-ready-in-zone", Crossed, "{zone} has endpoints, and none of them takes connections now", "nearlb backends SERVICE: why is none ready?"},
	{"hinted-from-other-zone", Crossed, "the slices' hints give {zone} endpoints of another zone", "the annotation nearlb.io/traffic-distribution goes by where endpoints are, not by hints"},
	{"no-longer", Crossed, "new connections stay in the zone; these bytes are of before, or of open ones", ""},
	{"endpoint-without-zone", Crossed, "the EndpointSlices say no zone for these endpoints", "label their Nodes with topology.kubernetes.io/zone"},
	{"unknown-zone", Crossed, "nobody knows whether these bytes cross zones: this node or the endpoint has none", "label the Nodes with topology.kubernetes.io/zone"},
}
