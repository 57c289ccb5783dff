// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever a change says, its line is the one of encoding/json.
func TestALineOfAChangeIsTheOneOfJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := func(name string) string {
			return rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[ -~]{0,20}`), rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, name)
		}
		c := Change{Node: text("node"), Time: time.Unix(0, rapid.Int64Range(0, 1<<62).Draw(t, "time")).UTC(), Service: text("service"), Port: text("port"),
			Protocol: text("protocol"), What: text("what"), Backend: text("backend"), Frontend: text("frontend"), From: text("from"), To: text("to"), Because: text("because")}
		for range rapid.IntRange(0, 3).Draw(t, "services") {
			c.Services = append(c.Services, text("one of services"))
		}
		want, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Line(); string(got) != string(want) {
			t.Fatalf("%s, want %s", got, want)
		}
	})
}

func BenchmarkLine(b *testing.B) {
	c := Change{Node: "n1", Time: time.Now().UTC(), Service: "default/web", Port: "http", Protocol: "TCP", What: "backend-added", Backend: "10.244.1.2:8080", To: "active",
		Because: "EndpointSlice default/web-abcde: ready"}
	b.Run("line", func(b *testing.B) {
		for b.Loop() {
			c.Line()
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		for b.Loop() {
			if _, err := json.Marshal(c); err != nil {
				b.Fatal(err)
			}
		}
	})
}
