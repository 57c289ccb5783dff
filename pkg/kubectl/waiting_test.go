// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

// What takes longer than two seconds says how far it is, and takes that away; what does not says nothing.
func TestWhoWaitsSeesHowManyNodesHaveAnswered(t *testing.T) {
	for _, c := range []struct {
		takes time.Duration
		want  string
	}{
		{time.Second, ""},
		{2750 * time.Millisecond, "\r\x1b[K1 of 3 nodes have answered\r\x1b[K1 of 3 nodes have answered\r\x1b[K"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var seen bytes.Buffer
			w := &waiting{to: &seen, total: 3, over: make(chan struct{})}
			w.begin()
			w.one()
			time.Sleep(c.takes)
			w.end()
			if seen.String() != c.want {
				t.Errorf("after %v: %q, want %q", c.takes, &seen, c.want)
			}
		})
	}
	all := &asked{request: &request{command: []string{"services"}}, errs: &bytes.Buffer{}}
	w := all.waitFor(1)
	if w.end(); w.to != nil {
		t.Error("shown where there is no terminal")
	}
}
