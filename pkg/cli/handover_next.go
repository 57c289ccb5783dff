// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"
)

// handoverStep is something to do, or to wait for.
type handoverStep struct {
	Text     string   `json:"text"`
	Commands []string `json:"commands,omitempty"`
	Brief    string   `json:"-"` // the same for nearlb check; of the first step only
}

// nextSteps says what comes next on the way that the node is on. It is never empty.
func nextSteps(s handoverState) []handoverStep {
	switch {
	case s.Draining:
		return stepsToKubeProxy(s)
	case s.Installed && s.Proxy != "":
		return []handoverStep{{
			Text: "Nothing: this is a trial. nearlb serves the Services with the label service.kubernetes.io/service-proxy-name: " + s.Proxy +
				" alone, and kube-proxy has to serve the others. To hand those over as well:",
			Commands: []string{"kubectl apply -k manifests/overlays/handover"},
			Brief:    "It serves what has no label for nearlb",
		}}
	case s.KubeProxy.found.IPVS:
		return []handoverStep{{
			Text: "kube-proxy is in IPVS mode, whose connections nearlb cannot tell from its own: start it in nftables mode first, or drain the node (kubectl drain) " +
				"and then end kube-proxy and remove its rules.",
			Commands: s.KubeProxy.found.Remove(),
			Brief:    "Its mode IPVS cannot be handed over: start it in nftables mode first, or drain the node",
		}}
	case !s.Installed && s.KubeProxy.found.Any():
		install := "kubectl apply -k manifests/overlays/handover"
		return []handoverStep{{"Start nearlb beside kube-proxy:", []string{install}, "Start nearlb beside it: " + install}}
	case !s.Installed:
		return []handoverStep{{Text: "Nothing to hand over: neither nearlb nor kube-proxy is here."}}
	case s.KubeProxy.found.Any():
		return stepsToNearlb(s.KubeProxy)
	}
	return []handoverStep{{Text: "Done: nearlb serves this node, and nothing of kube-proxy is here."}}
}

func stepsToNearlb(k kubeProxyState) []handoverStep {
	if k.Running != "" {
		end := "kubectl -n kube-system delete daemonset kube-proxy"
		return []handoverStep{{"End kube-proxy. Its rules stay, and translate its connections until they end:", []string{end}, "End it, its connections go on: " + end}}
	}
	remove := removal(k)
	n := k.Connections.TCP + k.Connections.SCTP
	if n == 0 {
		remove.Brief = "Nobody needs them: " + strings.Join(remove.Commands, "; ")
		return []handoverStep{remove}
	}
	return []handoverStep{{
		Text:     fmt.Sprintf("Wait for kube-proxy's %d connections to end, or do without them. UDP clients go on with nearlb as soon as the rules are gone.", n),
		Commands: []string{"nearlb handover --watch"},
		Brief:    fmt.Sprintf("They serve %d connections still; then remove them: nearlb handover says how", n),
	}, remove}
}

// removal takes kube-proxy's rules away. Whoever is connected through them then sends to nobody.
func removal(k kubeProxyState) handoverStep {
	commands := k.found.Remove()
	if k.Sockets > 0 {
		commands = append(commands, "nearlb handover --end-udp")
	}
	text := "Remove kube-proxy's rules, on the node:"
	if n := k.Connections.TCP + k.Connections.SCTP; n > 0 {
		text = "Then remove kube-proxy's rules, on the node. Connections that they serve end with the last rule of NAT, if nobody else has any:"
	}
	return handoverStep{Text: text, Commands: commands}
}

func stepsToKubeProxy(s handoverState) []handoverStep {
	undo := handoverStep{Text: "To go back to nearlb:", Commands: []string{"nearlb handover --to nearlb"}}
	var names []handoverStep
	if s.names {
		names = []handoverStep{{Text: "Nobody answers names at the addresses of --dns-address (169.254.20.10): have pods whose resolv.conf names one of them alone ask the cluster's DNS " +
			"(the kubelet's clusterDNS), or run NodeLocal DNSCache.",
			Brief: "Pods may ask for names where nobody answers: nearlb handover says which"}}
	}
	if !s.KubeProxy.found.Any() && len(s.KubeProxy.found.Hidden) == 0 {
		start := handoverStep{Text: "Start kube-proxy: nobody takes this node's new connections.", Brief: "Start it: nobody takes them"}
		return append(append([]handoverStep{start}, names...), undo)
	}
	remove := handoverStep{Text: "Stop the agent (kubectl delete -k manifests/...), and take nearlb out of the kernel:", Commands: []string{"nearlb cleanup"},
		Brief: "None of nearlb's is left: stop the agent, nearlb cleanup"}
	steps := append(names, remove, undo)
	n := s.Nearlb.TCP + s.Nearlb.UDP + s.Nearlb.SCTP
	if n == 0 {
		return steps
	}
	return append([]handoverStep{{
		Text:     fmt.Sprintf("Wait for %d connections of nearlb to end, or do without them. Those of this node's own sockets go on without it, and are not counted.", n),
		Commands: []string{"nearlb handover --watch"},
		Brief:    fmt.Sprintf("%d connections of nearlb are left: nearlb handover says what to do", n),
	}}, steps...)
}
