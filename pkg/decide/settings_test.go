// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

// outcome is "balance same-zone 0 0.5": action, reason, shares of the other and of unknown zones.
func outcome(o decide.Outcome) string {
	return fmt.Sprintf("%s %s %.3g %.3g", o.Action, o.Reason, o.OtherZone, o.UnknownZone)
}

func TestEachSettingIsDecidedAsIfTheServiceHadIt(t *testing.T) {
	const near, far, nowhere = "\n10.1.0.2 ready node=n2 zone=a", "\n10.1.0.3 ready node=n3 zone=b", "\n10.1.0.4 ready node=n4"
	keys := web()
	keys.TopologyKeys = []string{"kubernetes.io/hostname", "*"}
	noZone := n1()
	noZone.Zone = ""
	for _, row := range []struct {
		name string
		svc  lb.Service
		node lb.Node
		text string
		want [4]string // as it is, PreferSameZone, PreferSameNode, Local
	}{
		{"one in each zone", web(), n1(), near + far, [4]string{"balance all 0.5 0", "balance same-zone 0 0", "balance same-zone 0 0", "drop no-local-endpoints 0 0"}},
		{"one on the node", web(), n1(), "10.1.0.1 ready node=n1 zone=a" + far, [4]string{"balance all 0.5 0", "balance same-zone 0 0", "balance same-node 0 0", "balance local 0 0"}},
		{"none in the zone", web(), n1(), far, [4]string{"balance all 1 0", "balance all 1 0", "balance all 1 0", "drop no-local-endpoints 0 0"}},
		{"none at all", web(), n1(), "", [4]string{"reject no-endpoints 0 0", "reject no-endpoints 0 0", "reject no-endpoints 0 0", "reject no-endpoints 0 0"}},
		{"of no zone", web(), n1(), far + nowhere, [4]string{"balance all 0.5 0.5", "balance all 0.5 0.5", "balance all 0.5 0.5", "drop no-local-endpoints 0 0"}},
		{"topology keys make room", keys, n1(), near + far, [4]string{"balance all 0.5 0", "balance same-zone 0 0", "balance same-zone 0 0", "drop no-local-endpoints 0 0"}},
		{"a node of no zone", web(), noZone, near + far, [4]string{"balance all 0 1", "balance all 0 1", "balance all 0 1", "drop no-local-endpoints 0 0"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			all := decide.Outcomes(lb.Input{Service: row.svc, Endpoints: endpoints(t, row.text)}, row.node)
			if len(all) != 4 {
				t.Fatalf("%d outcomes: %+v", len(all), all)
			}
			for i, setting := range []decide.Setting{decide.AsItIs, decide.WantsSameZone, decide.WantsSameNode, decide.WantsLocal} {
				equal(t, "setting", string(all[i].Setting), string(setting))
				equal(t, string(setting), outcome(all[i]), row.want[i])
			}
		})
	}
}

// Shares are parts of one, a Service that has the setting already has one outcome with it and without, and the Service that was asked
// about stays as it is.
func TestOutcomesAreThoseOfDecisions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWorld(t)
		before := decide.Serve(w.in, w.node)
		for _, o := range decide.Outcomes(w.in, w.node) {
			if o.OtherZone < 0 || o.UnknownZone < 0 || o.OtherZone+o.UnknownZone > 1.000001 {
				t.Fatalf("shares of %+v", o)
			}
			if o.Setting != decide.AsItIs {
				continue
			}
			for _, f := range before.Frontends {
				if f.Port == o.Port && f.Kind == lb.KindClusterIP {
					if f.Internal.Action != o.Action || f.Internal.Reason != o.Reason {
						t.Fatalf("%+v, and the decision is %+v", o, f.Internal)
					}
					break
				}
			}
		}
		if !decide.Serve(w.in, w.node).Equal(before) {
			t.Fatal("the Service is another one now")
		}
	})
}
