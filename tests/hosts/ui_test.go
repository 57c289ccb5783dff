// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// uiMap is what of the page's map is looked at.
type uiMap struct {
	Nodes []struct {
		Node     string
		Zone     string
		Agent    struct{ Works bool }
		Services []struct {
			Service string
			New     float64 `json:"new_per_second"`
			Ready   int
			Trouble []string
		}
		Backends []struct {
			BackendNode string  `json:"backend_node"`
			BackendZone string  `json:"backend_zone"`
			New         float64 `json:"new_per_second"`
		}
	}
}

// The agent serves the page on its metrics' port, with the privileges that it has kept: what goes on, then what fails and why.
func TestAnAgentServesThePageOfItsTables(t *testing.T) {
	c := newCluster(t, options{alone: true, agent: []string{"--ui"}})
	client, backend := c.pod(0, "client"), c.server(2, "web")
	s := c.service(1)
	s.publish(ready(backend)...)
	s.awaitServer(client, backend.Name)
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), metricsPort)
	ask := func(path string, to any) bool {
		answer, err := get(c.nodes[0], at, "/ui/"+path)
		return err == nil && answer.code == http.StatusOK && json.Unmarshal([]byte(answer.text), to) == nil
	}
	c.await("the map shows the traffic", func() bool {
		for _, w := range ways() {
			s.ask(client, w)
		}
		var shown uiMap
		if !ask("map.json?filter="+s.Name, &shown) || len(shown.Nodes) != 1 || !shown.Nodes[0].Agent.Works || shown.Nodes[0].Node != "n1" || shown.Nodes[0].Zone != "a" {
			return false
		}
		n := shown.Nodes[0]
		for _, service := range n.Services {
			if strings.HasSuffix(service.Service, "/"+s.Name) && service.New > 0 && service.Ready > 0 && len(service.Trouble) == 0 {
				for _, b := range n.Backends {
					if b.New > 0 && b.BackendNode == "n3" && b.BackendZone == "b" {
						return true
					}
				}
			}
		}
		return false
	})
	s.publish(notReady(backend))
	name := ""
	c.await("the map shows that there is no endpoint", func() bool {
		var shown uiMap
		if !ask("map.json?filter="+s.Name, &shown) || len(shown.Nodes) != 1 {
			return false
		}
		for _, service := range shown.Nodes[0].Services {
			if strings.HasSuffix(service.Service, "/"+s.Name) && slices.Contains(service.Trouble, "no-endpoints") {
				name = service.Service
				return true
			}
		}
		return false
	})
	var why struct {
		Nodes []struct {
			Packets bool
			Causes  []struct{ What string }
		}
	}
	if !ask("why.json?service="+name, &why) || len(why.Nodes) != 1 || len(why.Nodes[0].Causes) == 0 || why.Nodes[0].Causes[0].What != "endpoints-not-ready" || why.Nodes[0].Packets {
		t.Errorf("why: %+v", why)
	}
	for path, want := range map[string]string{"/ui/": "<title>nearlb</title>", "/metrics": "nearlb_build_info"} {
		if answer, err := get(c.nodes[0], at, path); err != nil || !strings.Contains(answer.text, want) {
			t.Errorf("%s: %d, %v", path, answer.code, err)
		}
	}
}
