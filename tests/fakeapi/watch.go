// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// watcher is a watch that is being answered.
type watcher struct {
	*Server
	table     *table
	chosen    selection
	encoding  encoding
	bookmarks bool
	out       *bufio.Writer
	flush     func() error
	at        uint64 // everything up to this version was told
}

// watch tells of changes until its time is over, the client goes, or it is broken off.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, t *table, e encoding, chosen selection) {
	q := r.URL.Query()
	from, err := parseVersion(q.Get("resourceVersion"))
	seconds, secondsErr := strconv.Atoi("0" + q.Get("timeoutSeconds"))
	if err != nil || secondsErr != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "resourceVersion or timeoutSeconds is no number")
		return
	}
	streamed := q.Get("sendInitialEvents") == "true"
	if q.Get("sendInitialEvents") != "" && (s.options.NoStreams || q.Get("resourceVersionMatch") != string(metav1.ResourceVersionMatchNotOlderThan)) {
		fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			"sendInitialEvents: Forbidden: it wants resourceVersionMatch NotOlderThan, and a server that streams lists")
		return
	}
	end := 30*time.Minute + time.Duration(s.requests.Load()%1800)*time.Second // as kube-apiserver chooses one
	if seconds > 0 {
		end = time.Duration(seconds) * time.Second
	}
	w.Header().Set("Content-Type", e.contentType(true))
	w.WriteHeader(http.StatusOK)
	to := &watcher{
		Server: s, table: t, chosen: chosen, encoding: e, at: from, bookmarks: q.Get("allowWatchBookmarks") == "true",
		out: bufio.NewWriterSize(w, 64<<10), flush: http.NewResponseController(w).Flush,
	}
	if err := to.begin(streamed, q.Get("sendInitialEvents") == "" && from == 0); err == nil {
		_ = to.follow(r.Context().Done(), end) // the client went away
	}
}

// begin sends what there is already: as a streamed list, or because no version was asked for.
func (w *watcher) begin(streamed, synthetic bool) error {
	if streamed || synthetic {
		objects, now := w.snapshot(w.table)
		w.at = max(now, w.at)
		for _, o := range objects {
			if w.chosen.has(o) {
				if err := w.send(apiwatch.Added, o); err != nil {
					return err
				}
			}
		}
	}
	if streamed && w.bookmarks {
		if err := w.mark(true); err != nil {
			return err
		}
	}
	return w.deliver()
}

// follow tells of changes as they come.
func (w *watcher) follow(gone <-chan struct{}, end time.Duration) error {
	over := time.NewTimer(end)
	defer over.Stop()
	bookmark := time.NewTicker(w.options.BookmarksEvery)
	defer bookmark.Stop()
	_, _, _, _, broken := w.since(w.table, w.at)
	for {
		changes, now, forgotten, grown, _ := w.since(w.table, w.at)
		if forgotten {
			return w.expire()
		}
		for _, c := range changes {
			if kind, o := w.chosen.event(c); o != nil {
				if err := w.send(kind, o); err != nil {
					return err
				}
			}
		}
		w.at = max(w.at, now)
		if err := w.deliver(); err != nil {
			return err
		}
		select {
		case <-grown:
		case <-bookmark.C:
			if err := w.markNow(); err != nil {
				return err
			}
		case <-over.C:
			return w.markNow()
		case <-broken:
			panic(http.ErrAbortHandler) // as a connection that breaks: the client gets no proper end
		case <-gone:
			return nil
		}
	}
}

func (w *watcher) send(kind apiwatch.EventType, o *entry) error {
	object, err := w.encoding.object(w.table.kind, o)
	if err != nil {
		return err
	}
	return w.event(kind, object)
}

func (w *watcher) event(kind apiwatch.EventType, object []byte) error {
	frame, err := w.encoding.frame(kind, object)
	if err == nil {
		_, err = w.out.Write(frame)
	}
	return err
}

// markNow sends a bookmark to who wants some.
func (w *watcher) markNow() error {
	if !w.bookmarks {
		return nil
	}
	if err := w.mark(false); err != nil {
		return err
	}
	return w.deliver()
}

func (w *watcher) mark(initialEnd bool) error {
	object, err := w.encoding.bookmark(w.table.kind, w.at, initialEnd)
	if err != nil {
		return err
	}
	return w.event(apiwatch.Bookmark, object)
}

// expire says that the version is of the past. As kube-apiserver does, within the watch.
func (w *watcher) expire() error {
	object, err := w.encoding.status(metav1.Status{
		Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: fmt.Sprintf("too old resource version: %d", w.at),
	})
	if err != nil {
		return err
	}
	if err := w.event(apiwatch.Error, object); err != nil {
		return err
	}
	return w.deliver()
}

func (w *watcher) deliver() error {
	if err := w.out.Flush(); err != nil {
		return err
	}
	return w.flush()
}
