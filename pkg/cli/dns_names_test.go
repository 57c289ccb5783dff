// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/dns"
)

// Of 3,000 AAAA records of 28 bytes a message carries 64 KiB: fewer.
func TestRecordsThatFitIntoNoMessageAreTold(t *testing.T) {
	const slices, endpoints = 3, 1000
	var objects bytes.Buffer
	objects.WriteString("apiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: prod}\nspec: {clusterIP: None, ports: [{name: sql, port: 5432}]}\n")
	for slice := range slices {
		fmt.Fprintf(&objects, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv6\nports: [{name: sql, port: 5432}]\n"+
			"metadata: {name: db-%d, namespace: prod, labels: {kubernetes.io/service-name: db}}\nendpoints:\n", slice)
		for endpoint := range endpoints {
			fmt.Fprintf(&objects, "- {addresses: [\"fd00:%x::%x\"], hostname: h}\n", slice+1, endpoint+1)
		}
	}
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, objects.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	told := func(into any, args ...string) {
		t.Helper()
		var out, errOut bytes.Buffer
		if status := run(t.Context(), append(args, "-f", path, "-o", "json"), nil, &out, &errOut); status != command.ExitDone {
			t.Fatalf("%v: status %d: %s", args, status, &errOut)
		}
		if err := json.Unmarshal(out.Bytes(), into); err != nil {
			t.Fatal(err)
		}
	}
	const name = "db.prod.svc.cluster.local."
	var doc dns.LookUp
	told(&doc, "dns", "query", name, "AAAA")
	if len(doc.Answers) != slices*endpoints {
		t.Errorf("query: %d records", len(doc.Answers))
	}
	var rows []nameRow
	told(&rows, "dns", "names")
	data := map[string]bool{}
	for _, row := range rows {
		if row.Name == name && row.Type == "AAAA" {
			data[row.Data] = true
		}
	}
	if len(data) != slices*endpoints {
		t.Errorf("names: %d records", len(data))
	}
}

// What nobody named yields to an upstream that somebody did; what was named is kept, for the agent to refuse.
func TestTheDefaultAddressForNamesIsLeftToAnUpstream(t *testing.T) {
	for flags, want := range map[string]int{
		"": 1, "--dns-upstream=169.254.20.10": 0, "--dns-upstream=169.254.20.10:54": 1, "--dns-upstream=169.254.20.10 --dns-address=169.254.20.10": 1, "--dns-address=": 0,
	} {
		o := agent.DefaultNameOptions()
		cmd := &cobra.Command{}
		names := addNameFlags(cmd, &o)
		if err := cmd.ParseFlags(strings.Fields(flags)); err != nil {
			t.Fatal(err)
		}
		if err := names.read(); err != nil || len(o.AlsoAt) != want {
			t.Errorf("%s: %v, asked at %v", flags, err, o.AlsoAt)
		}
	}
}
