// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	wire "github.com/miekg/dns"
	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/trace"
)

// requestReader gives one request after the other, then io.EOF. All its other errors are bad usage or bad input.
type requestReader func() (trace.Request, error)

// requests are those of the flags or those of --packets. Nothing but usage is checked before the first is read.
func (f *traceFlags) requests(cmd *cobra.Command, objects *command.ObjectFlags) (requestReader, error) {
	if err := f.notBoth(cmd, objects); err != nil {
		return nil, err
	}
	switch f.packets {
	case "":
		return f.single()
	case "-":
		return packetLines("standard input", cmd.InOrStdin()), nil
	}
	text, err := os.ReadFile(f.packets)
	if err != nil {
		return nil, command.Usagef("--packets: %w", err)
	}
	return packetLines(f.packets, bytes.NewReader(text)), nil
}

func (f *traceFlags) notBoth(cmd *cobra.Command, objects *command.ObjectFlags) error {
	if len(objects.Files) == 0 {
		for _, flag := range []string{"node", "zone", "node-ip", "nodeport-addresses", "service-cidr", "off-node"} {
			if cmd.Flags().Changed(flag) {
				return command.Usagef("--%s goes with --filename: the live tables know their node", flag)
			}
		}
	} else if f.question != "" {
		return command.Usagef("--question and --filename exclude each other: names are in the live tables")
	} else if cmd.Flags().Changed("pin-path") {
		return command.Usagef("--pin-path and --filename exclude each other: live tables or objects")
	}
	if f.packets == "" {
		return nil
	}
	for _, flag := range []string{"from", "src", "dst", "proto", "count", "question", "question-type"} {
		if cmd.Flags().Changed(flag) {
			return command.Usagef("--%s and --packets exclude each other: each line of the file has its own", flag)
		}
	}
	for _, file := range objects.Files {
		if file == "-" && f.packets == "-" {
			return command.Usagef("--filename - and --packets - exclude each other: standard input can be read once")
		}
	}
	return nil
}

// single is the request of the flags, checked at once.
func (f *traceFlags) single() (requestReader, error) {
	for flag, value := range map[string]string{"from": f.from, "src": f.src, "dst": f.dst, "proto": f.proto} {
		if value == "" {
			return nil, command.Usagef("--%s is missing: a packet needs --from, --src, --dst and --proto", flag)
		}
	}
	if f.count < 1 {
		return nil, command.Usagef("--count %d: want 1 to %d", f.count, trace.MostPackets)
	}
	line := packetLine{From: f.from, Src: f.src, Dst: f.dst, Proto: f.proto, Count: f.count, Question: f.question, QuestionType: f.qtype}
	request, err := line.request()
	if err != nil {
		return nil, command.Usagef("--%w", err)
	}
	done := false
	return func() (trace.Request, error) {
		if done {
			return trace.Request{}, io.EOF
		}
		done = true
		return request, nil
	}, nil
}

// packetLine is one line of --packets (contracts.md). Ports may be in their own fields or behind the addresses.
type packetLine struct {
	ID    string `json:"id"`
	From  string `json:"from"`
	Src   string `json:"src"`
	Sport uint16 `json:"sport"`
	Dst   string `json:"dst"`
	Dport uint16 `json:"dport"`
	Proto string `json:"proto"`
	Count int    `json:"count"`

	Question     string `json:"question"`      // a name
	QuestionType string `json:"question_type"` // "" is A
}

// request checks a line; errors begin with the field.
func (p packetLine) request() (trace.Request, error) {
	r := trace.Request{ID: p.ID, From: trace.Door(strings.ToLower(p.From)), Count: p.Count}
	source, err := withFieldPort("src", p.Src, p.Sport)
	if err != nil {
		return r, err
	}
	to, err := withFieldPort("dst", p.Dst, p.Dport)
	if err != nil {
		return r, err
	}
	r.Source, r.To = source, to
	switch strings.ToLower(p.Proto) {
	case "icmp", "icmpv6":
		r.Protocol = trace.ICMP
	case "":
		return r, fmt.Errorf("proto: missing: want tcp, udp, sctp or icmp")
	default:
		if r.Protocol, err = lb.ParseProtocol(p.Proto); err != nil {
			return r, fmt.Errorf("proto %q: want tcp, udp, sctp or icmp", p.Proto)
		}
	}
	if p.Question != "" {
		qtype, err := questionOf([]string{p.Question, cmp.Or(p.QuestionType, "A")})
		if err != nil {
			return r, fmt.Errorf("question: %w", err)
		}
		r.Question = &trace.Question{Name: wire.Fqdn(p.Question), Type: qtype}
	}
	return r, r.Check()
}

func withFieldPort(field, text string, port uint16) (netip.AddrPort, error) {
	if text == "" {
		return netip.AddrPort{}, fmt.Errorf("%s: missing: want an IP address", field)
	}
	addr, own, err := parseAddress(text)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%s %w", field, err)
	}
	if own != 0 && port != 0 && own != port {
		return netip.AddrPort{}, fmt.Errorf("%s %q: its port is not %d", field, text, port)
	}
	return netip.AddrPortFrom(addr, max(own, port)), nil
}

// packetLines reads requests as they come. An empty line is none.
func packetLines(name string, in io.Reader) requestReader {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	number := 0
	return func() (trace.Request, error) {
		for lines.Scan() {
			number++
			text := bytes.TrimSpace(lines.Bytes())
			if len(text) == 0 {
				continue
			}
			request, err := readPacketLine(text)
			if err != nil {
				return request, command.Usagef("%s:%d: %w", name, number, err)
			}
			return request, nil
		}
		if err := lines.Err(); err != nil {
			return trace.Request{}, command.Usagef("%s:%d: %w", name, number+1, err)
		}
		return trace.Request{}, io.EOF
	}
}

func readPacketLine(text []byte) (trace.Request, error) {
	var line packetLine
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&line); err != nil {
		return trace.Request{}, fmt.Errorf("read packet: %w", err)
	}
	if decoder.More() {
		return trace.Request{}, fmt.Errorf("read packet: want one JSON object a line")
	}
	return line.request()
}
