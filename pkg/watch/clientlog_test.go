// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestClientGoSpeaksThroughOurLog(t *testing.T) {
	var out bytes.Buffer
	plain := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	log := ClientLogger(slog.New(slog.NewTextHandler(&out, plain))).WithName("reflector").WithValues("kind", "Node")
	log.Error(errors.New("broken"), "Watch ended", "after", 3)
	log.Info("Started")
	log.V(1).Info("a detail")
	log.V(4).Info("a trace")
	same(t, "log", out.String(), "level=WARN msg=\"Watch ended\" logger=reflector kind=Node after=3 error=broken\n")
}

func TestEachSortOfOutageIsSaidOnceUntilAllIsWell(t *testing.T) {
	r := newRecorder()
	o := newOutage(slog.New(r))
	silent := errors.New("connection refused")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil)
	for range 3 {
		o.failed(kindService, silent)
		o.failed(kindSlice, silent)
		o.failed(kindNode, forbidden)
	}
	same(t, "refused and forbidden", r.logged("cannot be read"), 2)
	o.worked(kindService)
	o.worked(kindSlice)
	o.failed(kindNode, forbidden)
	same(t, "recovered too early", r.logged("again"), 0)
	o.worked(kindNode)
	o.worked(kindNode)
	same(t, "recovered", r.logged("again"), 1)
	o.failed(kindNode, forbidden)
	same(t, "said anew", r.logged("cannot be read"), 3)
}
