// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// ErrNotAsked: no agent of the pin path runs.
var ErrNotAsked = errors.New("no agent runs (start `nearlb agent`, or name its --pin-path and --lock-dir)")

// Socket is where the agent of a pin path answers questions of the command line, to root alone.
func Socket(lockDir, pinPath string) string {
	return filepath.Join(lockDir, bpf.LockName(lockDir, pinPath)+".sock")
}

// askAgent has read consume what the agent answers on a socket. The time limit is for each piece of the answer; 0: none.
func askAgent(ctx context.Context, socket, request string, within time.Duration, read func(*json.Decoder) error) error {
	dial := func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		err = inDirectory(socket, func(address string) error {
			conn, err = (&net.Dialer{Timeout: cmp.Or(within, askTime)}).DialContext(ctx, "unix", address)
			return err
		})
		if err != nil || within == 0 {
			return conn, err
		}
		return patient{conn, within}, nil
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial, ResponseHeaderTimeout: askTime}}
	question, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+request, nil)
	if err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	answer, err := client.Do(question)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return ErrNotAsked
	}
	if err != nil {
		return late("ask the agent", cmp.Or(within, askTime), err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, err := io.ReadAll(answer.Body)
		return errors.Join(err, errors.New(strings.TrimSpace(string(text))))
	}
	if err := read(json.NewDecoder(answer.Body)); err != nil {
		return late("read the agent's answer", within, err)
	}
	return nil
}

// patient waits so long for each piece of what the other end says. A list may take longer as a whole.
type patient struct {
	net.Conn
	within time.Duration
}

// Read is net.Conn's.
func (p patient) Read(to []byte) (int, error) {
	if err := p.SetReadDeadline(time.Now().Add(p.within)); err != nil {
		return 0, err
	}
	return p.Conn.Read(to)
}

// late says what to think of where the agent took too long.
func late(doing string, within time.Duration, err error) error {
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("%s: it is not answered within %v: is the agent stopped, or does it hang? (%w)", doing, within, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// inDirectory calls use with an address for a socket that is short, however long its path: addresses have 107 bytes (unix(7)).
func inDirectory(path string, use func(address string) error) error {
	directory, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer directory.Close()
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", directory.Fd(), filepath.Base(path)))
}

// forPeople is the server of those who ask by the socket.
func (d *daemon) forPeople() server {
	mux := http.NewServeMux()
	d.names.answer(mux)
	mux.HandleFunc("GET /drops", d.drops.answer)
	mux.HandleFunc("GET /changes", d.changes.answer)
	mux.HandleFunc("GET /service", d.answerService)
	mux.HandleFunc("GET /readmit", d.answerReadmit)
	mux.HandleFunc("GET /zones", d.answerZones)
	mux.HandleFunc("GET /annotations", d.answerAnnotations)
	mux.HandleFunc("GET /flows/count", d.answerFlowCount)
	return server{"people", func() (net.Listener, error) { return listenToUsers(Socket(d.options.LockDir, d.options.PinPath)) }, mux, d}
}

// listenToUsers makes the socket at a path, where an agent may have left one that was killed: the lock is ours.
func listenToUsers(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove former socket: %w", err)
	}
	out := from{path: path, users: []uint32{0, uint32(os.Geteuid())}}
	err := inDirectory(path, func(address string) (err error) {
		out.UnixListener, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: address})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	out.SetUnlinkOnClose(false) // by an address that means something else by then
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	return out, nil
}

// from accepts connections of some users alone. The mode of the socket keeps all others out but for the moment before it is set.
type from struct {
	*net.UnixListener
	path  string
	users []uint32
}

// Close is net.Listener's, and takes the socket away.
func (l from) Close() error {
	_ = os.Remove(l.path) // nobody else makes one while the lock is ours
	return l.UnixListener.Close()
}

// Accept is net.Listener's.
func (l from) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if user, err := userOf(conn); err == nil && slices.Contains(l.users, user) {
			return conn, nil
		}
		_ = conn.Close() // nothing was written
	}
}

// userOf is who connected (unix(7), SO_PEERCRED).
func userOf(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	if refused := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); refused != nil {
		return 0, refused
	}
	if err != nil {
		return 0, err
	}
	return peer.Uid, nil
}
