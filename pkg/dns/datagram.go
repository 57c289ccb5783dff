// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	wire "github.com/miekg/dns"
)

// datagrams answers what comes by one UDP socket, which is bound to one address. Questions about names of ours are answered one after the
// other where they are read, which costs the library's server a goroutine for each; each processor has such a socket. What is asked of an
// upstream has a goroutine.
type datagrams struct {
	*Server
	conn    *net.UDPConn
	waiting sync.WaitGroup
	out     []byte // of answers from the view
}

// run answers until ctx ends or the socket is closed, which is no error.
func (d *datagrams) run(ctx context.Context) error {
	defer d.waiting.Wait()
	stop := context.AfterFunc(ctx, func() { _ = d.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	in := make([]byte, wire.DefaultMsgSize)
	for {
		n, from, err := d.conn.ReadFromUDPAddrPort(in)
		switch {
		case ctx.Err() != nil, errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return err
		}
		d.answer(ctx, in[:n], from)
	}
}

func (d *datagrams) answer(ctx context.Context, message []byte, from netip.AddrPort) {
	query, refusal := read(message)
	switch {
	case refusal != nil:
		d.send(refusal, refusal, d.out, from)
		return
	case query == nil:
		return
	}
	client := Client{Address: from.Addr().Unmap()}
	client.IP6 = client.Address.Is6()
	if reply, known := d.Responder.ServeAlone(query, client); known {
		d.out = d.send(query, reply, d.out, from)
		return
	}
	d.waiting.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, exchangeTime)
		defer cancel()
		d.send(query, d.Responder.Serve(ctx, query, client), nil, from)
	})
}

// send gives room for the next answer, which may be what it got.
func (d *datagrams) send(query, reply *wire.Msg, room []byte, to netip.AddrPort) []byte {
	data, err := d.pack(query, reply, room)
	if err != nil {
		return room
	}
	if _, err := d.conn.WriteToUDPAddrPort(data, to); err != nil {
		d.Log.Debug("answer a query", "address", to.String(), "error", err)
	}
	return data[:cap(data)]
}

// headerSize is that of a message's header in bytes (RFC 1035 4.1.1).
const headerSize = 12

// read takes a message apart by the rules of the library's server. Of a bad one it gives what is said to that; neither: nothing is.
func read(message []byte) (query, refused *wire.Msg) {
	if len(message) < headerSize {
		return nil, nil
	}
	half := func(i int) uint16 { return binary.BigEndian.Uint16(message[2*i:]) }
	action := accept(wire.Header{Id: half(0), Bits: half(1), Qdcount: half(2), Ancount: half(3), Nscount: half(4), Arcount: half(5)})
	if action == wire.MsgIgnore {
		return nil, nil
	}
	query = new(wire.Msg)
	if action == wire.MsgAccept && query.Unpack(message) == nil {
		return query, nil
	}
	var header [headerSize]byte
	copy(header[:4], message)
	refused = new(wire.Msg)
	if refused.Unpack(header[:]) != nil {
		return nil, nil
	}
	opcode := refused.Opcode
	refused.SetRcodeFormatError(refused)
	refused.Zero = false
	if action == wire.MsgRejectNotImplemented {
		refused.Opcode, refused.Rcode = opcode, wire.RcodeNotImplemented
	}
	return nil, refused
}
