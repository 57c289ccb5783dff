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
	"golang.org/x/sys/unix"
)

// datagrams answers what comes by one UDP socket, which is bound to one address. Questions about names of ours are answered one after the
// other where they are read, which costs the library's server a goroutine for each; each processor has such a socket. What is asked of an
// upstream has a goroutine.
type datagrams struct {
	*Server
	conn    *net.UDPConn
	recent  *recent
	waiting sync.WaitGroup

	in, out  *batch
	messages [atOnce][]byte
	answers  [atOnce][]byte // of the recent ones
	room     []byte         // for another one
}

// run answers until ctx ends or the socket is closed, which is no error.
func (d *datagrams) run(ctx context.Context) error {
	defer d.waiting.Wait()
	stop := context.AfterFunc(ctx, func() { _ = d.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	socket, err := d.conn.SyscallConn()
	if err != nil {
		return err
	}
	d.in, d.out = newBatch(socket, unix.SYS_RECVMMSG), newBatch(socket, unix.SYS_SENDMMSG)
	for i := range d.messages {
		d.messages[i] = make([]byte, wire.DefaultMsgSize)
	}
	for {
		n, err := d.in.read(&d.messages)
		switch {
		case ctx.Err() != nil, errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return err
		}
		d.answer(ctx, n)
	}
}

// answer answers so many questions that were read. Those that were answered lately do not wait for one that has to be looked up.
func (d *datagrams) answer(ctx context.Context, n int) {
	var unknown [atOnce]int
	rest := unknown[:0]
	for i := range n {
		if !d.repeat(i) {
			rest = append(rest, i)
		}
	}
	if err := d.out.write(); err != nil {
		d.Log.Debug("answer queries", "error", err)
	}
	for _, i := range rest {
		d.lookUp(ctx, d.message(i), d.in.from(i))
	}
}

// message is one that was read.
func (d *datagrams) message(i int) []byte { return d.messages[i][:d.in.headers[i].length] }

// repeat gives a recent answer; false: there is none.
func (d *datagrams) repeat(i int) bool {
	message := d.message(i)
	s := d.recent.find(message)
	if s == nil {
		return false
	}
	d.answers[i] = s.appendTo(d.answers[i][:0], message)
	d.out.add(d.answers[i], d.in, i)
	d.Responder.repeated(s)
	return true
}

func (d *datagrams) lookUp(ctx context.Context, message []byte, from netip.AddrPort) {
	query, refusal := read(message)
	switch {
	case refusal != nil:
		d.room, _ = d.send(refusal, refusal, d.room, from)
		return
	case query == nil:
		return
	}
	client := Client{Address: from.Addr().Unmap()}
	client.IP6 = client.Address.Is6()
	written := d.recent.view.mu.written.Load()
	begun := d.Responder.begin(query)
	if begun.ask == nil {
		var data []byte
		reply := d.Responder.end(ctx, begun, query, client)
		d.room, data = d.send(query, reply, d.room, from)
		d.recent.keep(written, message, reply, data)
		return
	}
	d.waiting.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, exchangeTime)
		defer cancel()
		d.send(query, d.Responder.end(ctx, begun, query, client), nil, from)
	})
}

// send returns room for the next answer, which may be what it got, and what it sent, which is in there.
func (d *datagrams) send(query, reply *wire.Msg, room []byte, to netip.AddrPort) (next, data []byte) {
	data, err := d.pack(query, reply, room)
	if err != nil {
		return room, nil
	}
	if _, err := d.conn.WriteToUDPAddrPort(data, to); err != nil {
		d.Log.Debug("answer a query", "address", to.String(), "error", err)
	}
	return data[:cap(data)], data
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
