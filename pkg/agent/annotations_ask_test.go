// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// annotatedSource has Services with annotations, and nothing else.
type annotatedSource struct {
	watch.Source
	watch.Looker
	services []lb.ServiceAnnotations
}

func (s annotatedSource) Annotated() []lb.ServiceAnnotations { return s.services }

// Who asks is told which annotations are in force, and why others are not; of a source that cannot be looked at, none.
func TestAnAgentTellsWhichAnnotationsAreInForce(t *testing.T) {
	services := []lb.ServiceAnnotations{{Service: lb.ServiceName{Namespace: "prod", Name: "web"}, Annotations: []lb.Annotation{
		{Name: "nearlb.io/retry-refused", Value: "true"}, {Name: "nearlb.io/slow-strat", Value: "30s", Problem: "has no effect: did you mean nearlb.io/slow-start?"}}}}
	for _, row := range []struct {
		source watch.Source
		want   []lb.ServiceAnnotations
	}{{annotatedSource{services: services}, services}, {nil, []lb.ServiceAnnotations{}}} {
		directory := t.TempDir()
		pins := filepath.Join(directory, "pins")
		listener, err := net.Listen("unix", Socket(directory, pins))
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc((&daemon{source: row.source}).answerAnnotations)}
		go func() { _ = server.Serve(listener) }()
		got, err := AskAnnotations(t.Context(), directory, pins)
		if diff := cmp.Diff(row.want, got); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}
}
