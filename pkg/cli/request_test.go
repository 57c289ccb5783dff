// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/lb"
)

func TestPacketLinesAreReadInOrder(t *testing.T) {
	next := packetLines("p.jsonl", strings.NewReader(`
{"id": "x1", "from": "pod", "src": "10.244.1.1", "dst": "10.96.0.10", "dport": 80, "proto": "TCP", "count": 64}

{"id": "x2", "from": "pod", "src": "[fd00::1]:4000", "dst": "[fd00::2]:53", "proto": "udp"}`))
	first, err := next()
	if err != nil || first.ID != "x1" || first.Count != 64 || first.To.String() != "10.96.0.10:80" || first.Protocol != lb.TCP {
		t.Errorf("got %+v, %v", first, err)
	}
	second, err := next()
	if err != nil || second.Source.String() != "[fd00::1]:4000" || second.To.Port() != 53 || second.Protocol != lb.UDP {
		t.Errorf("got %+v, %v", second, err)
	}
	if _, err := next(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
}

func TestABadPacketLineIsNamed(t *testing.T) {
	for line, want := range map[string]string{
		`{`: "p.jsonl:1: read packet: ",
		`{"from": "pod", "src": "10.0.0.1", "dst": "10.0.0.2", "dport": 80}`:                                           "p.jsonl:1: proto: missing",
		`{"from": "pod", "src": "10.0.0.1", "dst": "10.0.0.2", "proto": "tcp"}`:                                        `p.jsonl:1: dst "10.0.0.2": its port is missing`,
		`{"from": "pod", "src": "10.0.0.1", "dst": "10.0.0.2:80", "dport": 81, "proto": "tcp"}`:                        "its port is not 81",
		`{"from": "pod", "dst": "10.0.0.2", "dport": 80, "proto": "tcp"}`:                                              "p.jsonl:1: src: missing",
		`{"from": "moon", "src": "10.0.0.1", "dst": "10.0.0.2", "dport": 80, "proto": "tcp"}`:                          `from "moon": want pod, host or network`,
		`{"from": "pod", "src": "10.0.0.1", "dst": "10.0.0.2", "dport": 80, "proto": "tcp", "count": -1}`:              "count -1: want 1 to",
		`{"from": "pod", "src": "10.0.0.1", "dst": "10.0.0.2", "dport": 70000, "proto": "tcp"}`:                        "dport",
		`{"from": "pod", "source": "10.0.0.1", "dst": "10.0.0.2", "dport": 80, "proto": "tcp"}`:                        `unknown field "source"`,
		`{"from": "pod", "src": "10.0.0.1", "dst": "10.0.0.2", "dport": 80, "proto": "tcp"} {"id": "two on one line"}`: "one JSON object a line",
	} {
		_, err := packetLines("p.jsonl", strings.NewReader(line))()
		if err == nil || !strings.Contains(err.Error(), want) || command.ExitStatus(err) != 2 {
			t.Errorf("%s\n  got  %v\n  want %s", line, err, want)
		}
	}
}
