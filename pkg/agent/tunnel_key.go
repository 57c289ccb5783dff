// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	tables "github.com/nearlb/nearlb/pkg/maps"
)

// Nodes that share a key show each other a cookie in every packet between them. The file has one key, or two while it changes: this node's
// packets have the cookie of the first, and those of other nodes that of either. Nothing in it depends on clocks, nor on an agent that lives:
// whoever changes the Secret says when the cookie changes.
const (
	noTunnelKey       = "none" // in the place of a key: packets without a cookie
	tunnelKeyLeast    = 16     // bytes of a key
	tunnelKeyFileMost = 4096
)

// tunnelKeys are of a file, in its order.
func tunnelKeys(text string) ([]string, error) {
	keys := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return strings.TrimSpace(line) == "" })
	if len(keys) == 0 || len(keys) > len(tables.Cookies{}.Accepted) {
		return nil, fmt.Errorf("it has %d keys: want one a line, one or two", len(keys))
	}
	for i, key := range keys {
		if keys[i] = strings.TrimSpace(key); len(keys[i]) < tunnelKeyLeast && keys[i] != noTunnelKey {
			return nil, fmt.Errorf("key %d has %d bytes: want %d or more, or %q", i+1, len(keys[i]), tunnelKeyLeast, noTunnelKey)
		}
	}
	return keys, nil
}

// tunnelCookies are what the programs are told of keys.
func tunnelCookies(keys []string) tables.Cookies {
	first, last := tunnelCookie(keys[0]), tunnelCookie(keys[len(keys)-1])
	return tables.Cookies{Asked: true, Sent: first, Accepted: [2]uint64{min(first, last), max(first, last)}}
}

// tunnelCookie tells nothing of the key; 0: there is none.
func tunnelCookie(key string) uint64 {
	if key == noTunnelKey {
		return 0
	}
	sum := hmac.New(sha256.New, []byte(key))
	_, _ = io.WriteString(sum, "nearlb tunnel")
	return max(1, binary.LittleEndian.Uint64(sum.Sum(nil))) // as a program has its bytes
}

// readTunnelKeys gives the keys of a file.
func readTunnelKeys(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read tunnel keys: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, tunnelKeyFileMost+1))
	if err == nil && len(text) > tunnelKeyFileMost {
		err = fmt.Errorf("%s: more than %d bytes", path, tunnelKeyFileMost)
	}
	if err != nil {
		return nil, fmt.Errorf("read tunnel keys: %w", err)
	}
	keys, err := tunnelKeys(string(text))
	if err != nil {
		return nil, fmt.Errorf("read tunnel keys: %s: %w", path, err)
	}
	return keys, nil
}

// readKeys looks at the file again. changed: the programs are to be told. What cannot be read leaves in force what was.
func (p *tunnelPeers) readKeys() (changed bool, err error) {
	if p.keyFile == "" {
		return false, nil
	}
	keys, err := readTunnelKeys(p.keyFile)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused = err; err != nil {
		return false, err
	}
	cookies := tunnelCookies(keys)
	changed = cookies != p.cookies
	p.cookies, p.hearsay = cookies, hearsayKeys(keys)
	return changed, nil
}

// followKeys looks for another key, and says of a file that it refuses so once.
func (r *running) followKeys() {
	before := r.loop.peers.keyTrouble()
	changed, err := r.loop.peers.readKeys()
	switch {
	case changed:
		r.daemon.log.Info("packets between nodes have cookies of other keys")
		r.loop.tunnelChanged()
	case err != nil && (before == nil || before.Error() != err.Error()):
		r.daemon.log.Warn("tunnel keys are refused: those before stay in force", "error", err)
	case before != nil && err == nil:
		r.daemon.log.Info("tunnel keys are accepted again")
	}
}

// keyTrouble is why the file was refused when it was last looked at.
func (p *tunnelPeers) keyTrouble() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// shown are the cookies in force.
func (p *tunnelPeers) shown() tables.Cookies {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cookies
}

// hearsayKeys are of the keys in force.
func (p *tunnelPeers) hearsayKeys() []hearsayKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hearsay
}

// Modes of TunnelStatus.Cookie.
const (
	CookieOff      = "off"      // there is no --tunnel-key-file
	CookieOn       = "on"       // packets have the cookie of the one key
	CookieChanging = "changing" // they have that of the first key, and those of other nodes may have the second's
)

// cookieMode is one of those.
func cookieMode(c tables.Cookies) string {
	switch {
	case !c.Asked:
		return CookieOff
	case c.Accepted[0] != c.Accepted[1]:
		return CookieChanging
	case c.Sent == 0:
		return CookieOff
	}
	return CookieOn
}
