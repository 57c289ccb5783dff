// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Between veths a checksum is usually neither computed nor looked at. Here it is: pods send complete ones, which the
// programs must keep right; and those that pods leave to the hardware are completed on the way out of the node, from
// what the programs made of them. The receiver's kernel drops what is wrong.
func TestChecksumsAreRightWithoutOffloads(t *testing.T) {
	for name, disable := range map[string]func(*cluster, []*lab.Pod) error{
		"complete at the pod":      disableAtPods,
		"completed on the way out": disableAtUplinks,
	} {
		t.Run(name, func(t *testing.T) {
			var c *cluster
			if name == "complete at the pod" {
				c = onLinks(t)
			} else {
				c = newCluster(t, options{}) // its uplinks stay like that
			}
			client, near, far := c.pod(0, "client"), c.server(0, "web-1"), c.server(1, "web-2")
			if err := disable(c, []*lab.Pod{client, near, far}); err != nil {
				t.Fatal(err)
			}
			s := c.service(1)
			for _, backend := range []*lab.Pod{near, far} {
				s.publish(ready(backend)...)
				s.awaitServer(client, backend.Name)
				for _, w := range ways() {
					checkContent(t, s.dial(client, w), w, backend.Name)
				}
			}
			s.publish(ready(client)...) // hairpin: nobody serves there, which is an answer too
			for _, w := range ways() {
				c.await(w.String()+" is refused by the pod itself", func() bool { return refused(s.try(client, w)) })
			}
			s.publish()
			for _, w := range ways() {
				c.await(w.String()+" is refused", func() bool { return refused(s.try(client, w)) })
			}
		})
	}
}

func disableAtPods(_ *cluster, pods []*lab.Pod) error {
	for _, p := range pods {
		if err := p.DisableOffloads("eth0"); err != nil {
			return err
		}
	}
	return nil
}

func disableAtUplinks(c *cluster, _ []*lab.Pod) error {
	for _, n := range c.nodes {
		if err := n.DisableOffloads(lab.Uplink); err != nil {
			return err
		}
	}
	return nil
}
