// SPDX-License-Identifier: Apache-2.0

package lb_test

import (
	"encoding/json"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

func TestServiceNamesAreReadAsTheyArePrinted(t *testing.T) {
	want := lb.ServiceName{Namespace: "default", Name: "web"}
	text, err := json.Marshal(want)
	if err != nil || string(text) != `"default/web"` {
		t.Fatalf("got %s, %v", text, err)
	}
	var got lb.ServiceName
	if err := json.Unmarshal(text, &got); err != nil || got != want {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "web", "/web", "default/"} {
		if err := got.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}

func TestProtocolsAreSpelledAsInTheAPI(t *testing.T) {
	for _, want := range []lb.Protocol{lb.TCP, lb.UDP, lb.SCTP} {
		if got, err := lb.ParseProtocol(want.String()); got != want || err != nil {
			t.Errorf("%v is read as %v, %v", want, got, err)
		}
	}
	if got, err := lb.ParseProtocol("udp"); got != lb.UDP || err != nil {
		t.Errorf("udp is read as %v, %v", got, err)
	}
	if _, err := lb.ParseProtocol("ICMP"); err == nil {
		t.Error("ICMP is read")
	}
	if got := lb.Protocol(1).String(); got != "1" {
		t.Errorf("protocol 1 is %q", got)
	}
}

func TestNamesOfPorts(t *testing.T) {
	service := lb.ServiceName{Namespace: "default", Name: "web"}
	for want, name := range map[string]lb.PortName{
		"default/web:http/TCP": {Service: service, Port: "http", Protocol: lb.TCP},
		"default/web/UDP":      {Service: service, Protocol: lb.UDP},
	} {
		if got := name.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
