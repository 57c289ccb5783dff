// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pages is a list that goes on: what is left of it, as it was when it began.
type pages struct {
	left    []*entry
	version uint64
}

// mostPages is how many lists may go on at once. What goes beyond is forgotten, which clients are ready for.
const mostPages = 32

// list answers with everything selected, or with a page of it.
func (s *Server) list(w http.ResponseWriter, r *http.Request, t *table, e encoding, chosen selection) {
	q := r.URL.Query()
	asked, err := parseVersion(q.Get("resourceVersion"))
	limit, limitErr := strconv.Atoi("0" + q.Get("limit"))
	if err != nil || limitErr != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "resourceVersion or limit is no number")
		return
	}
	var page pages
	if token := q.Get("continue"); token != "" {
		var known bool
		if page, known = s.goOn(token); !known {
			fail(w, http.StatusGone, metav1.StatusReasonExpired, "The provided continue parameter is too old to display a consistent list result.")
			return
		}
	} else {
		all, now := s.snapshot(t)
		if asked > now {
			fail(w, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, fmt.Sprintf("Too large resource version: %d, current: %d", asked, now))
			return
		}
		page.version = now
		for _, o := range all {
			if chosen.has(o) {
				page.left = append(page.left, o)
			}
		}
		if q.Get("resourceVersion") == "0" { // answered from the watch cache, which makes no pages
			limit = 0
		}
	}
	meta := metav1.ListMeta{ResourceVersion: version(page.version)}
	objects := page.left
	if limit > 0 && len(objects) > limit {
		objects, page.left = objects[:limit], objects[limit:]
		meta.Continue = s.keep(page)
		if chosen.labels.Empty() && chosen.fields.Empty() {
			left := int64(len(page.left))
			meta.RemainingItemCount = &left
		}
	}
	body, err := e.list(t.kind, objects, meta)
	writeZipped(w, r, e, body, err)
}

func (s *Server) goOn(token string) (pages, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	page, known := s.pages[token]
	return page, known
}

// keep gives the token of a list that goes on.
func (s *Server) keep(page pages) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for token := range s.pages { // any
		if len(s.pages) < mostPages {
			break
		}
		delete(s.pages, token)
	}
	token := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s %d", page.version, page.left[0].key, s.requests.Load()))
	s.pages[token] = page
	return token
}

// zipFrom is the size from which kube-apiserver compresses, in bytes.
const zipFrom = 128 << 10

func writeZipped(w http.ResponseWriter, r *http.Request, e encoding, body []byte, err error) {
	if err != nil || len(body) < zipFrom || !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		write(w, e, body, err)
		return
	}
	w.Header().Set("Content-Type", e.contentType(false))
	w.Header().Set("Content-Encoding", "gzip")
	zip, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level exists
	_, _ = zip.Write(body)                           // the client went away
	_ = zip.Close()
}
