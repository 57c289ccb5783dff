// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// reads counts the reads of a body that has everything at hand.
type reads struct {
	*strings.Reader
	count  int
	closed bool
}

func (r *reads) Read(p []byte) (int, error) { r.count++; return r.Reader.Read(p) }
func (r *reads) Close() error               { r.closed = true; return nil }

func (r *reads) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: r}, nil
}

func TestAWatchTakesAllThatHasComeAtOnce(t *testing.T) {
	for query, want := range map[string]int{"?watch=true": 1, "": 100} {
		t.Run(query, func(t *testing.T) {
			body := &reads{Reader: strings.NewReader(strings.Repeat("an event of a watch. ", 100))}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x/api/v1/services"+query, nil)
			must(t, err)
			response, err := readAhead{body}.RoundTrip(request)
			must(t, err)
			for range 100 {
				piece := make([]byte, len("an event of a watch. "))
				_, err := io.ReadFull(response.Body, piece)
				must(t, err)
				same(t, "piece", string(piece), "an event of a watch. ")
			}
			same(t, "reads", body.count, want)
			must(t, response.Body.Close())
			same(t, "closed", body.closed, true)
		})
	}
}
