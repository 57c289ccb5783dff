// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// outage says once that the API server does not answer, for whatever reason, and once that it does again. client-go goes
// on trying with a back-off all the while.
type outage struct {
	log *slog.Logger

	mu      sync.Mutex
	failing map[kind]bool
	said    map[metav1.StatusReason]bool
	since   time.Time // of the first failure
	newest  error
}

func newOutage(log *slog.Logger) *outage {
	return &outage{log: log, failing: map[kind]bool{}, said: map[metav1.StatusReason]bool{}}
}

// failed notes that a request for a kind failed. Each sort of failure is said once until all is well again: a server that
// does not answer has no reason, one that refuses has.
func (o *outage) failed(k kind, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.failing) == 0 {
		o.since = time.Now()
	}
	o.failing[k], o.newest = true, err
	if reason := apierrors.ReasonForError(err); !o.said[reason] {
		o.said[reason] = true
		o.log.Warn("objects cannot be read from the API server: those known stay in force", "kind", k, "error", err)
	}
}

// worked notes that a request for a kind was answered.
func (o *outage) worked(k kind) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.failing[k] {
		return
	}
	delete(o.failing, k)
	if len(o.failing) == 0 {
		clear(o.said)
		o.log.Info("objects can be read from the API server again")
	}
}

// lasts tells whether the API server cannot be read.
func (o *outage) lasts() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.failing) > 0
}

// last is the newest failure of the outage, and since when the outage lasts.
func (o *outage) last() (string, time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.failing) == 0 {
		return "", time.Time{}
	}
	return o.newest.Error(), o.since
}
