// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// inKubeProxysPlace: what overlays/handover gives an agent is enough to leave kube-proxy its connections and to take the new ones; what
// that took beyond an agent's usual capabilities it gives away. So does the one that has kube-proxy's ports afterwards.
func inKubeProxysPlace(c *rig.Cluster) {
	h := newHandover(c, "nftables")
	h.startKubeProxy()
	h.publish()
	old := h.hold()

	i := installOn(c, h.nodes[0], "overlays/handover")
	i.pod.Config = map[string]string{"api-server": c.Plane.URL()}
	i.handsOver("127.0.0.1:10266", "127.0.0.1:10267")
	h.goOn("nearlb beside kube-proxy", old)
	fresh := h.hold()
	h.checkNew(fresh, false)
	for _, p := range h.proxies {
		_ = p.Stop()
	}
	h.goOn("kube-proxy has ended", old)

	i.must(i.agent.Stop())
	i.load("overlays/handover-alone")
	i.handsOver("[::]:10256", "127.0.0.1:10249")
	if code := i.get("http://127.0.0.1:10256/healthz"); code != 200 {
		i.T.Errorf("it answers %d where load balancers ask", code)
	}
	h.goOn("another agent", append(old, fresh...))
	h.answers()
	state := i.handover()
	if state.KubeProxy.Connections.TCP == 0 || len(state.KubeProxy.Rules) == 0 || state.Nearlb.TCP == 0 || state.Draining {
		i.T.Errorf("nearlb handover says %+v", state)
	}
	i.finish()
}

// handsOver starts an agent beside kube-proxy's rules: it may ask connection tracking, and then no more than every other agent.
func (i *installed) handsOver(health, metrics string) {
	i.T.Helper()
	i.start()
	var status agent.Status
	i.await("serving", func(s agent.Status) bool {
		status = s
		return serving(s) && s.Listen["health"] == health && s.Listen["metrics"] == metrics
	})
	if given, err := i.set.Capabilities(); err != nil || !slices.Contains(given, "CAP_SYS_ADMIN") {
		i.T.Errorf("it was started with %v, %v: nothing is shown", given, err)
	}
	if want := []string{"CAP_NET_BIND_SERVICE", "CAP_NET_ADMIN", "CAP_BPF"}; !slices.Equal(status.May, want) {
		i.T.Errorf("it kept %v, want %v", status.May, want)
	}
	for _, trouble := range status.Trouble {
		if strings.Contains(trouble, "kube-proxy") {
			i.T.Errorf("its trouble: %s", trouble)
		}
	}
}

// handover asks in the container.
func (i *installed) handover() (state handoverState) {
	i.T.Helper()
	out, err := i.set.Exec(i.node.Node, i.pod, "handover", "-o", "json")
	i.must(err)
	i.must(json.Unmarshal([]byte(out), &state))
	return state
}
