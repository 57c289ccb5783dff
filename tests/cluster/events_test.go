// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/cluster/rig"
)

const topologyKeys = "nearlb.io/topology-keys"

// B8: a wrong annotation is one Event on its Service, whichever agents see it and however often they start. The Service is served as
// if it had none, and by the annotation once that is mended.
func TestAWrongAnnotationIsOneEventForAllNodes(t *testing.T) {
	c := rig.Shared(t)
	client, near, far := c.Client(0, "client"), c.Server("web", "near", 0), c.Server("web", "far", 2)
	w := &wrong{c, c.Service("web", func(s *corev1.Service) { s.Annotations = map[string]string{topologyKeys: "rack,rack"} })}
	w.seen(true)
	made := w.told(len(c.Nodes())) // not more than three nodes: each agent tells
	event := w.event()
	w.says(event)
	w.service.AwaitServers(client, near, far)

	node := c.Node(1)
	w.must(node.Agent.Kill())
	c.StartAgent(node)
	c.AwaitServing()
	w.seen(true)
	w.told(made + 1)
	if again := w.event(); again.UID != event.UID || again.Count != 1 {
		t.Errorf("after an agent has started again the Event is %v, want still %v", again, event)
	}

	w.service.Update(func(s *corev1.Service) { s.Annotations[topologyKeys] = corev1.LabelHostname })
	w.seen(false)
	w.service.AwaitServers(client, near)
	w.event() // of what was: nobody takes it back, and the API server forgets it
}

// wrong is a Service whose annotation is.
type wrong struct {
	*rig.Cluster
	service *rig.Service
}

func (w *wrong) must(err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

// seen waits until every agent has the mistake among its problems, or none has.
func (w *wrong) seen(is bool) {
	w.T.Helper()
	name := lb.ServiceName{Namespace: w.Namespace, Name: w.service.Name}
	ours := func(p lb.Problem) bool { return p.Object == name.Object() }
	for _, n := range w.Nodes() {
		pid := n.Agent.PID()
		w.Await(n.Name+" sees what is wrong, or that nothing is", func() bool {
			status, err := agent.ReadStatus(w.LockDir(), n.PinPath())
			return err == nil && status.PID == pid && slices.ContainsFunc(status.Problems, ours) == is
		})
	}
}

// told waits until the API server has answered that many agents that it made the Event, or has it. One of them made it.
func (w *wrong) told(times int) (answers int) {
	w.T.Helper()
	var made int
	w.Await("the agents tell of it", func() bool {
		requests, err := w.Plane.Audited(rig.Account)
		w.must(err)
		answers, made = 0, 0
		for _, r := range requests {
			if r.Verb != "create" || r.ObjectRef.Resource != "events" || r.ObjectRef.Namespace != w.Namespace {
				continue
			}
			switch r.ResponseStatus.Code {
			case http.StatusCreated:
				made++
				answers++
			case http.StatusConflict:
				answers++
			}
		}
		return answers >= times
	})
	if made != 1 {
		w.T.Errorf("%d Events were made, want one", made)
	}
	return answers
}

// event is the only one that nearlb made on the Service, found as kubectl describe does.
func (w *wrong) event() corev1.Event {
	w.T.Helper()
	list, err := w.API.CoreV1().Events(w.Namespace).List(w.T.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.kind=Service,source=nearlb,involvedObject.uid=" + string(w.service.Get().UID)})
	w.must(err)
	if len(list.Items) != 1 {
		w.T.Fatalf("%d Events, want one: %v", len(list.Items), list.Items)
	}
	return list.Items[0]
}

// says judges what people see of it.
func (w *wrong) says(e corev1.Event) {
	w.T.Helper()
	got := e.Type + " " + e.Reason + " " + e.ReportingController + " " + e.InvolvedObject.Name + ": " + e.Message
	want := `Warning InvalidAnnotation nearlb web: metadata.annotations[nearlb.io/topology-keys]: "rack": duplicate value; the annotation is ignored`
	if got != want {
		w.T.Errorf("the Event says\n%s\nwant\n%s", got, want)
	}
	isHost := func(n *rig.Node) bool { return n.Name == e.Source.Host }
	if e.Count != 1 || e.FirstTimestamp.IsZero() || !e.LastTimestamp.Equal(&e.FirstTimestamp) || !slices.ContainsFunc(w.Nodes(), isHost) {
		w.T.Errorf("the Event is %v, want one, with its time and node", e)
	}
}
