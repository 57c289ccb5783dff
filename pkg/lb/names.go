// SPDX-License-Identifier: Apache-2.0

// Package lb is the vocabulary of nearlb: what a Service asks for, what its endpoints are, and what a node decides to do
// about it. Values only: no clock, no kernel, no Kubernetes. It imports the standard library alone.
package lb

import (
	"cmp"
	"fmt"
	"strings"
)

// ServiceName names a Kubernetes Service.
type ServiceName struct {
	Namespace string
	Name      string
}

// String is "namespace/name".
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, then name.
func (n ServiceName) Compare(o ServiceName) int {
	return cmp.Or(strings.Compare(n.Namespace, o.Namespace), strings.Compare(n.Name, o.Name))
}

// MarshalText makes "namespace/name" of it, in JSON keys and values.
func (n ServiceName) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText reads "namespace/name".
func (n *ServiceName) UnmarshalText(text []byte) error {
	namespace, name, ok := strings.Cut(string(text), "/")
	if !ok || namespace == "" || name == "" {
		return fmt.Errorf("read service name %q: want namespace/name", text)
	}
	*n = ServiceName{Namespace: namespace, Name: name}
	return nil
}

// PortName names one port of a Service. Port and protocol together are the key, as in EndpointSlices: Port is the port's
// name, which may be empty, never its number.
type PortName struct {
	Service  ServiceName
	Port     string
	Protocol Protocol
}

// String is "namespace/name:port/TCP"; the name's part is left out, with its colon, when the port has none.
func (p PortName) String() string {
	if p.Port == "" {
		return p.Service.String() + "/" + p.Protocol.String()
	}
	return p.Service.String() + ":" + p.Port + "/" + p.Protocol.String()
}

// Compare orders by service, port name, protocol.
func (p PortName) Compare(o PortName) int {
	return cmp.Or(p.Service.Compare(o.Service), strings.Compare(p.Port, o.Port), cmp.Compare(p.Protocol, o.Protocol))
}

// Protocol is an IANA protocol number.
type Protocol uint8

// The protocols a Service port may have (v1.Protocol).
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String is the spelling of the Kubernetes API: TCP, UDP, SCTP; a number for others.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return fmt.Sprintf("%d", uint8(p))
}

// ParseProtocol reads the spelling of the Kubernetes API, in any case.
func ParseProtocol(s string) (Protocol, error) {
	switch strings.ToUpper(s) {
	case "TCP":
		return TCP, nil
	case "UDP":
		return UDP, nil
	case "SCTP":
		return SCTP, nil
	}
	return 0, fmt.Errorf("read protocol %q: want TCP, UDP or SCTP", s)
}

// MarshalText is String.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is ParseProtocol.
func (p *Protocol) UnmarshalText(text []byte) (err error) {
	*p, err = ParseProtocol(string(text))
	return err
}
