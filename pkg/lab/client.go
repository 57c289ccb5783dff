// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Patience is how long a client waits for an answer. Nothing is slow in a lab, but the machine may stand still for seconds: who
// waits that long waits for nothing.
const Patience = 30 * time.Second

// Answer is what a server said.
type Answer struct {
	Server string
	Client netip.AddrPort // the client as the server saw it
	Local  netip.AddrPort // the server's own address
}

// DialOptions of a client's socket.
type DialOptions struct {
	Local     netip.Addr    // an address of the host; zero: routing says
	LocalPort uint16        // 0: the kernel chooses
	Patience  time.Duration // with connecting and with each answer; 0 is Patience
}

// Conn is a client's connection, over TCP or UDP.
type Conn struct {
	net.Conn
	in       *bufio.Reader // TCP only
	patience time.Duration
}

// Dial connects a socket of the host. Network is "tcp" or "udp". A local port that is named may be shared (SO_REUSEADDR,
// SO_REUSEPORT); one that the kernel chooses is of this socket alone.
func (h *Host) Dial(ctx context.Context, network string, to netip.AddrPort, options DialOptions) (*Conn, error) {
	if options.Patience == 0 {
		options.Patience = Patience
	}
	dialer := net.Dialer{Timeout: options.Patience, KeepAlive: -1} // who keeps a connection and asks nothing sends nothing
	dialer.SetMultipathTCP(false)
	if options.LocalPort != 0 || options.Local.IsValid() {
		dialer.LocalAddr = options.local(network, to.Addr())
	}
	if options.LocalPort != 0 {
		dialer.Control = sharePort
	}
	var conn net.Conn
	err := h.Do(func() (err error) {
		conn, err = dialer.DialContext(ctx, network, to.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: conn, in: bufio.NewReaderSize(conn, 64<<10), patience: options.Patience}, nil
}

// local is what a socket towards an address is bound to.
func (o DialOptions) local(network string, to netip.Addr) net.Addr {
	address := o.Local
	if !address.IsValid() {
		address = everything(to).Addr()
	}
	if network == "udp" {
		return net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, o.LocalPort))
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(address, o.LocalPort))
}

func sharePort(_, _ string, raw syscall.RawConn) error {
	var errs [2]error
	err := raw.Control(func(fd uintptr) {
		errs[0] = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		errs[1] = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	for _, e := range errs {
		if err == nil {
			err = e
		}
	}
	return err
}

// Ask makes one connection, asks who is there and hangs up.
func (h *Host) Ask(ctx context.Context, network string, to netip.AddrPort, options DialOptions) (Answer, error) {
	conn, err := h.Dial(ctx, network, to, options)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	return conn.Who()
}

// Who asks over the connection who is at its other end. Over UDP one datagram is sent and one expected.
func (c *Conn) Who() (Answer, error) {
	if c.isUDP() {
		answer, _, err := c.Exchange([]byte("who"))
		return answer, err
	}
	if err := c.SetDeadline(time.Now().Add(c.patience)); err != nil {
		return Answer{}, err
	}
	if _, err := io.WriteString(c, "who\n"); err != nil {
		return Answer{}, err
	}
	line, err := c.in.ReadString('\n')
	if err != nil {
		return Answer{}, err
	}
	return parseAnswer(line)
}

// Exchange sends one UDP datagram and returns the server's answer and its copy of the datagram.
func (c *Conn) Exchange(datagram []byte) (Answer, []byte, error) {
	if err := c.SetDeadline(time.Now().Add(c.patience)); err != nil {
		return Answer{}, nil, err
	}
	if _, err := c.Write(datagram); err != nil {
		return Answer{}, nil, err
	}
	buffer := make([]byte, 64<<10)
	n, err := c.Read(buffer)
	if err != nil {
		return Answer{}, nil, err
	}
	return ParseDatagram(buffer[:n])
}

// Get has the server send length bytes and compares them.
func (c *Conn) Get(seed uint64, length int64) error {
	if err := c.SetDeadline(time.Now().Add(transferTime(length))); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "get %d %d\n", seed, length); err != nil {
		return err
	}
	return NewStream(seed).Check(c.in, length)
}

// Put sends length bytes and has the server compare them.
func (c *Conn) Put(seed uint64, length int64) error {
	if err := c.SetDeadline(time.Now().Add(transferTime(length))); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "put %d %d\n", seed, length); err != nil {
		return err
	}
	if err := NewStream(seed).Send(c, length); err != nil {
		return err
	}
	line, err := c.in.ReadString('\n')
	if err != nil {
		return err
	}
	if answer := strings.TrimSpace(line); answer != "ok" {
		return fmt.Errorf("send content: the server says: %s", answer)
	}
	return nil
}

// transferTime allows a megabyte in five seconds, on top of the usual patience.
func transferTime(length int64) time.Duration {
	return Patience + time.Duration(length>>20)*5*time.Second
}

func (c *Conn) isUDP() bool {
	_, ok := c.Conn.(*net.UDPConn)
	return ok
}

// Remote is the address the socket believes to speak with.
func (c *Conn) Remote() netip.AddrPort { return AddrPort(c.RemoteAddr()) }

// Local is the socket's own address.
func (c *Conn) Local() netip.AddrPort { return AddrPort(c.LocalAddr()) }

// AddrPort reads the address of a TCP or UDP socket, an IPv4 one always in its short form.
func AddrPort(a net.Addr) netip.AddrPort {
	parsed, _ := netip.ParseAddrPort(a.String())
	return unmap(parsed)
}

// DatagramSocket opens an unconnected UDP socket of one family: it receives from anybody and says from whom. Its own
// address is what routing says for each datagram. Port 0: the kernel chooses one that no other socket has.
func (h *Host) DatagramSocket(six bool, port uint16) (*net.UDPConn, error) {
	var conn *net.UDPConn
	network := map[bool]string{false: "udp4", true: "udp6"}[six]
	var config net.ListenConfig
	if port != 0 {
		config.Control = sharePort
	}
	err := h.Do(func() error {
		opened, err := config.ListenPacket(context.Background(), network, fmt.Sprintf(":%d", port))
		if err == nil {
			conn = opened.(*net.UDPConn)
		}
		return err
	})
	return conn, err
}

// ParseDatagram reads a server's UDP answer: who it is, and the copy of what was sent.
func ParseDatagram(answer []byte) (Answer, []byte, error) {
	line, rest, found := bytes.Cut(answer, []byte("\n"))
	if !found {
		return Answer{}, nil, fmt.Errorf("read answer: no line in %d bytes", len(answer))
	}
	a, err := parseAnswer(string(line))
	return a, rest, err
}

func parseAnswer(line string) (Answer, error) {
	var a Answer
	var client, local string
	if _, err := fmt.Sscan(line, &a.Server, &client, &local); err != nil {
		return Answer{}, fmt.Errorf("read answer %q: %w", line, err)
	}
	var err error
	if a.Client, err = netip.ParseAddrPort(client); err != nil {
		return Answer{}, fmt.Errorf("read answer %q: %w", line, err)
	}
	a.Local, err = netip.ParseAddrPort(local)
	return a, err
}

// PathMTU is what the kernel knows of the way to the socket's peer, in bytes with IP header (IP_MTU, IPV6_MTU).
func (c *Conn) PathMTU() (int, error) {
	raw, err := c.Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, err
	}
	mtu := 0
	controlErr := raw.Control(func(fd uintptr) {
		if c.Remote().Addr().Is6() {
			mtu, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU)
		} else {
			mtu, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU)
		}
	})
	return mtu, errors.Join(controlErr, err)
}

// Retransmits is how many segments the socket had to send again, SYNs included.
func (c *Conn) Retransmits() (n uint32, err error) {
	raw, err := c.Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = info.Total_retrans
		}
	})
	return n, errors.Join(controlErr, err)
}
