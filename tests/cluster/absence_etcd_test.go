// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// askEtcd posts to etcd's gateway, and gives the revision that it answers with.
func askEtcd(t *testing.T, c *rig.Cluster, what string, body map[string]any) int {
	t.Helper()
	text, err := json.Marshal(body)
	must(t, err)
	client := &http.Client{Transport: &http.Transport{DialContext: c.Plane.Config().Dial, DisableKeepAlives: true}}
	answer, err := client.Post("http://127.0.0.1:2379/v3/kv/"+what, "application/json", bytes.NewReader(text))
	must(t, err)
	defer answer.Body.Close()
	var out struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	must(t, json.NewDecoder(answer.Body).Decode(&out))
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("etcd %s: %s", what, answer.Status)
	}
	revision, err := strconv.Atoi(out.Header.Revision)
	must(t, err)
	return revision
}

// compactEtcd makes changes that no watch has heard of, and forgets the history up to the last.
func compactEtcd(t *testing.T, c *rig.Cluster) {
	t.Helper()
	var revision int
	for i := range 20 {
		key := base64.StdEncoding.EncodeToString([]byte(fmt.Sprintf("/test/%d", i)))
		revision = askEtcd(t, c, "put", map[string]any{"key": key, "value": key})
	}
	askEtcd(t, c, "compaction", map[string]any{"revision": strconv.Itoa(revision), "physical": true})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
