// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// manyServices are Services with one endpoint each.
func manyServices(count int) string {
	var text strings.Builder
	for i := range count {
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Service
metadata: {name: s%[1]d, namespace: default}
spec:
  clusterIP: 10.97.%[2]d.%[3]d
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s%[1]d-1, namespace: default, labels: {kubernetes.io/service-name: s%[1]d}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.%[2]d.%[3]d], nodeName: n1}]
`, i, i/250, i%250+1)
	}
	return text.String()
}

// portsOfEach is how many ports wideServices have, each of which takes a place in the table of Services: few objects fill it.
const portsOfEach = 64

func wideServices(count int) string {
	var text, ports strings.Builder
	for i := range portsOfEach {
		fmt.Fprintf(&ports, "{name: p%d, port: %d}, ", i, 80+i)
	}
	for i := range count {
		fmt.Fprintf(&text, "---\n{apiVersion: v1, kind: Service, metadata: {name: wide%[1]d, namespace: default}, spec: {clusterIP: 10.98.0.%[2]d, ports: [%[3]s]}}\n",
			i, i+1, ports.String())
	}
	return text.String()
}

// unbounded leaves the sizes to what is listed, as on a small node. The flow table is as small as it gets on any machine.
func unbounded(o *Options) {
	o.Memory = 1 << 30
	o.Sizes = bpf.DefaultLimits().Sizes
	o.Sizes.FlowSets = 64
}

func (m *machine) sizes() bpf.Sizes {
	m.Helper()
	sizes, found, err := bpf.Pinned(m.options.PinPath)
	m.must(err)
	if !found {
		m.Fatal("no tables are pinned")
	}
	return sizes
}

// Tables are as large as the first list wants, and later starts keep them so.
func TestTablesAreMadeAsLargeAsTheFirstListWants(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.manifest("many.yaml", manyServices(1500))
		first := m.agent(unbounded)
		first.serving(0)
		sizes := m.sizes()
		if sizes.Services != 3072 || sizes.Backends != 8192 || sizes.Frontends != 8192 || sizes.FlowSets != 64 || sizes.Affinity != bpf.DefaultSizes().Affinity {
			m.Errorf("1500 Services have tables of %+v", sizes)
		}
		m.must(first.end(syscall.SIGTERM))
		m.manifest("many.yaml", manyServices(1))
		again := m.agent(func(o *Options) { unbounded(o); o.Sizes.FlowSets, o.Sizes.Backends = 128, 64 })
		status := again.await("its tables", func(s Status) bool {
			return s.State == Serving && s.Services == 1 && len(m.loads()) == 1 && len(m.generations()) == 1
		})
		sizes.FlowSets = 128
		if diff := cmp.Diff(sizes, m.sizes()); diff != "" {
			m.Errorf("another start with a larger table of flows (-want +got):\n%s", diff)
		}
		if told := strings.Join(status.Trouble, "\n"); !strings.Contains(told, "table backends keeps its 8192 entries, its flag says 64 (--size-backends)") {
			m.Errorf("a table that is larger than its flag is not told of: %q", told)
		}
	})
}

// A flag that asks for more than the machine has is told of, and what was there serves and is published to.
func TestAnAgentWorksWithTheTablesThatAreThereWhereItCannotHaveTheLargerOnesOfItsFlags(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.manifest("web.yaml", web)
		first := m.agent(unbounded)
		first.serving(0)
		sizes := m.sizes()
		m.must(first.end(syscall.SIGTERM))
		m.manifest("more.yaml", manyServices(1))
		again := m.agent(func(o *Options) { unbounded(o); o.Sizes.FlowSets = 1 << 30 }) // half a terabyte
		again.await("both Services", func(s Status) bool {
			return s.State == Serving && s.Services == 2 && s.Growth.Times == 0 && s.Growth.Error != "" && len(m.generations()) == 1
		})
		if diff := cmp.Diff(sizes, m.sizes()); diff != "" {
			m.Errorf("tables (-before +after):\n%s", diff)
		}
	})
}

// A list that wants more than the tables hold makes them grow; everything that was published, and the counters, go over.
func TestTablesGrowWithWhatIsListed(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.pod("pod1")
		m.manifest("web.yaml", web)
		agent := m.agent(unbounded)
		agent.serving(2)
		before, links := m.sizes(), m.devices()
		counted := m.count(1)
		m.manifest("many.yaml", manyServices(2100))
		status := agent.await("larger tables", func(s Status) bool {
			return s.State == Serving && s.Services == 2101 && s.Dirty == 0 && s.Growth.Times == 1 && len(m.generations()) == 1 && onDevices(s) == 2
		})
		if after := m.sizes(); before.Services != 2048 || after.Services < 4200 || after.Slots < before.Slots || len(status.Failing) > 0 || status.Drift != 0 {
			m.Errorf("tables of %+v became %+v; failing %v, drift %d", before, after, status.Failing, status.Drift)
		}
		once := int(m.sizes().Services)
		wide := once/portsOfEach + 1
		m.manifest("wide.yaml", wideServices(wide))
		agent.await("larger tables again, for the same", func(s Status) bool {
			return s.State == Serving && s.Services == 2101+wide && s.Dirty == 0 && s.Growth.Times == 2 && len(m.generations()) == 1 && onDevices(s) == 2
		})
		if twice := int(m.sizes().Services); twice <= once {
			m.Errorf("tables that grew to %d Services hold %d the second time", once, twice)
		}
		if diff := cmp.Diff(counted, m.counters(1)); diff != "" {
			m.Errorf("counters of the Service and its backend (-before +after):\n%s", diff)
		}
		for i, row := range m.devices() {
			if replaced := row.Hook == "ingress"; replaced && row.Link != links[i].Link || row.ID == links[i].ID {
				m.Errorf("%s: was %+v, is %+v; want new programs, those of requests under the old link", row.Program, links[i], row)
			}
		}
		dump := m.dump()
		m.must(agent.end(syscall.SIGTERM))
		agent = m.agent(unbounded)
		agent.serving(2)
		if diff := cmp.Diff(dump, m.dump()); diff != "" {
			m.Errorf("a restart after that changed the tables (-before +after):\n%s", diff)
		}
		m.must(agent.end(syscall.SIGTERM))
	})
}

// counters are those of a service port and of a backend with this number, by processor.
type counters struct {
	Service []bpf.NearlbServiceCounter
	Backend []bpf.NearlbBackendCounter
}

// count has programs seem to have counted for a service port and a backend with this number.
func (m *machine) count(id uint32) counters {
	m.Helper()
	tables, err := bpf.OpenMaps(m.options.PinPath, false)
	m.must(err)
	defer tables.Close()
	c := m.counters(id)
	for i := range c.Service {
		c.Service[i].Connections, c.Backend[i].BytesTo = uint64(100+i), uint64(1000+i)
	}
	m.must(tables.ServiceCounters.Put(id, c.Service))
	m.must(tables.BackendCounters.Put(id, c.Backend))
	return c
}

func (m *machine) counters(id uint32) (c counters) {
	m.Helper()
	tables, err := bpf.OpenMaps(m.options.PinPath, false)
	m.must(err)
	defer tables.Close()
	m.must(tables.ServiceCounters.Lookup(id, &c.Service))
	m.must(tables.BackendCounters.Lookup(id, &c.Backend))
	return c
}

// generations are the directories of tables under the pin path.
func (m *machine) generations() []string {
	m.Helper()
	all, err := filepath.Glob(filepath.Join(m.options.PinPath, "*v[0-9]*"))
	m.must(err)
	return all
}
