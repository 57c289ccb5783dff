// SPDX-License-Identifier: Apache-2.0

// Package ui serves the page of `nearlb ui`: a map of Services, read only, for people on this host alone. What the page shows comes from
// a Source; the page itself is one file without anything from elsewhere.
package ui

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
)

// Source has what the page shows: documents, which are encoded as JSON. It is asked by many at once.
type Source interface {
	// Map is of the Services whose names contain a text.
	Map(ctx context.Context, filter string) (any, error)
	// Why is of one Service, namespace/name, and with a client of the packets that this one would send.
	Why(ctx context.Context, service, client string) (any, error)
}

//go:embed page.html
var page string

// mostQuery bounds a question, in bytes as the browser writes it: the page's filter has 200 letters, and each may take nine.
const mostQuery = 2000

// Handler serves the page at / and its documents beside it, wherever it is mounted with http.StripPrefix.
func Handler(source Source) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(page)) // the browser went away
	})
	mux.HandleFunc("/map.json", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, func(ctx context.Context) (any, error) { return source.Map(ctx, r.URL.Query().Get("filter")) })
	})
	mux.HandleFunc("/why.json", func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		answer(w, r, func(ctx context.Context) (any, error) {
			return source.Why(ctx, query.Get("service"), query.Get("client"))
		})
	})
	return guarded(mux)
}

// guarded lets through who asks by a name of this host, and asks alone. Another name is one that a page from elsewhere had resolved to
// the loopback address (DNS rebinding), and would be of that page's origin.
func guarded(next http.Handler) http.Handler {
	policy := contentPolicy(page)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case !isThisHost(r.Host):
			refuse(w, http.StatusForbidden, "ask by localhost or a loopback address")
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			refuse(w, http.StatusMethodNotAllowed, "this page is read only")
		case len(r.URL.RawQuery) > mostQuery:
			refuse(w, http.StatusRequestURITooLong, "the question is too long")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// answer writes a document to the page, and to no page from elsewhere: browsers say which asks.
func answer(w http.ResponseWriter, r *http.Request, of func(context.Context) (any, error)) {
	if from := r.Header.Get("Sec-Fetch-Site"); from != "" && from != "same-origin" && from != "none" {
		refuse(w, http.StatusForbidden, "another site asks")
		return
	}
	doc, err := of(r.Context())
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	text, err := json.Marshal(doc)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // the browser went away
}

// refuse says why, in a document that the page reads.
func refuse(w http.ResponseWriter, status int, why string) {
	text, err := json.Marshal(map[string]string{"error": why})
	if err != nil {
		text = []byte(`{}`) // a text always becomes JSON
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// isThisHost tells of a Host header that names localhost or a loopback address, with any port: it may be forwarded by another one.
func isThisHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil && address.Unmap().IsLoopback()
}

// CheckLocal refuses addresses that others than this host reach. A name is refused, too: what it means may change.
func CheckLocal(address string) error {
	where, err := netip.ParseAddrPort(address)
	if err != nil || !where.Addr().Unmap().IsLoopback() {
		return fmt.Errorf("%q: want a loopback address with a port, as 127.0.0.1:8249 or [::1]:8249", address)
	}
	return nil
}

// contentPolicy allows the page's own script and style, by their sums, and requests to where it came from: nothing else.
func contentPolicy(page string) string {
	sums := func(tag string) (all string) {
		for _, match := range regexp.MustCompile(`(?s)<`+tag+`>(.*?)</`+tag+`>`).FindAllStringSubmatch(page, -1) {
			sum := sha256.Sum256([]byte(match[1]))
			all += " 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
		}
		return all
	}
	return "default-src 'none'; script-src" + sums("script") + "; style-src" + sums("style") +
		"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
}
