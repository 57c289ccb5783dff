// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
)

const (
	oneKey     = "0123456789abcdef"
	anotherKey = "fedcba9876543210"
)

func TestAFileOfTunnelKeysHasOneOrTwo(t *testing.T) {
	one, another := tunnelCookie(oneKey), tunnelCookie(anotherKey)
	for text, want := range map[string]struct {
		cookies tables.Cookies
		mode    string
	}{
		oneKey + "\n":                       {tables.Cookies{Asked: true, Sent: one, Accepted: [2]uint64{one, one}}, CookieOn},
		" " + oneKey:                        {tables.Cookies{Asked: true, Sent: one, Accepted: [2]uint64{one, one}}, CookieOn},
		"none\n" + oneKey:                   {tables.Cookies{Asked: true, Accepted: [2]uint64{0, one}}, CookieChanging},
		oneKey + "\r\nnone\n":               {tables.Cookies{Asked: true, Sent: one, Accepted: [2]uint64{0, one}}, CookieChanging},
		oneKey + "\n\n" + anotherKey + "\n": {tables.Cookies{Asked: true, Sent: one, Accepted: [2]uint64{min(one, another), max(one, another)}}, CookieChanging},
		"none":                              {tables.Cookies{Asked: true}, CookieOff},
	} {
		keys, err := tunnelKeys(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := tunnelCookies(keys); got != want.cookies || cookieMode(got) != want.mode {
			t.Errorf("%q: %+v, %s, want %+v", text, got, cookieMode(got), want)
		}
	}
	for text, want := range map[string]string{
		"":                             "0 keys",
		"\n \n":                        "0 keys",
		strings.Repeat(oneKey+"\n", 3): "3 keys",
		"short":                        "key 1 has 5 bytes",
		oneKey + "\nNone":              "key 2 has 4 bytes",
	} {
		if _, err := tunnelKeys(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if one == 0 || one == another {
		t.Errorf("cookies %x and %x", one, another)
	}
}

// A file that cannot be read, or says no key, leaves in force what was, and status says so; at the start it is an error.
func TestWhatAFileOfTunnelKeysSaysIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := newTunnelPeers(6091, path)
	reads := func(changes bool, mode, trouble string) {
		t.Helper()
		changed, err := p.readKeys()
		if status := p.status(lb.OffNodeCarry, false, nil, ""); changed != changes || (err == nil) != (trouble == "") || err != nil && !strings.Contains(err.Error(), trouble) || status.Cookie != mode {
			t.Errorf("changed %v, error %v, mode %s, want %v, %q, %s", changed, err, status.Cookie, changes, trouble, mode)
		}
		if now := p.keyTrouble(); (now == nil) != (err == nil) {
			t.Errorf("trouble %v, want %v", now, err)
		}
	}
	reads(false, CookieOff, path)
	write(oneKey)
	reads(true, CookieOn, "")
	reads(false, CookieOn, "")
	write(strings.Repeat("x", tunnelKeyFileMost+1))
	reads(false, CookieOn, "more than 4096 bytes")
	write("short")
	reads(false, CookieOn, "key 1 has 5 bytes")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	reads(false, CookieOn, path)
	write(anotherKey + "\n" + oneKey)
	reads(true, CookieChanging, "")
}

// An answer is of a node whose packets are taken here, as it says itself.
func TestAnAnswerToAHelloSaysTheNodesCookie(t *testing.T) {
	one, another := tunnelCookie(oneKey), tunnelCookie(anotherKey)
	p := newTunnelPeers(6091, "")
	answered := func(by uint64, want bool) {
		t.Helper()
		in := helloOf(p.shown(), p.mark)
		if in[6] = helloAnswer; p.shown().Asked {
			copy(in[12:], helloOf(tables.Cookies{Asked: true, Sent: by}, 0)[12:20])
		}
		if got := p.isAnswer(in); got != want {
			t.Errorf("answer of a node with cookie %x: %v, want %v", by, got, want)
		}
		for at := range in {
			if wrong := slices.Clone(in); at != 7 && (at < 2 || at == 6 || at >= 8) {
				if wrong[at] ^= 1; p.isAnswer(wrong) {
					t.Errorf("byte %d of an answer changed", at)
				}
			}
		}
	}
	answered(0, true)
	p.cookies = tunnelCookies([]string{oneKey})
	answered(one, true)
	answered(another, false)
	answered(0, false)
	if plain := helloOf(tables.Cookies{}, p.mark); len(plain) != 16 {
		t.Errorf("a hello without a key has %d bytes", len(plain))
	} else if plain[6] = helloAnswer; p.isAnswer(plain) {
		t.Error("an answer without a cookie is taken")
	}
	p.cookies = tunnelCookies([]string{oneKey, anotherKey})
	answered(another, true)
	p.cookies = tunnelCookies([]string{oneKey, "none"})
	answered(0, true)
}
