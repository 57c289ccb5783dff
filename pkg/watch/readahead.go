// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bufio"
	"io"
	"net/http"
)

// readAheadBytes are about ten events of a watch.
const readAheadBytes = 32 << 10

// readAhead has each read of an answer take all that has come: client-go reads a watch in pieces of an event, and HTTP/2 tells the
// server of room after each 4 KiB that are read at once or in pieces, by a system call.
type readAhead struct{ next http.RoundTripper }

// RoundTrip is http.RoundTripper's.
func (r readAhead) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	if err == nil && response.Body != nil && request.URL.Query().Has("watch") {
		response.Body = buffered{bufio.NewReaderSize(response.Body, readAheadBytes), response.Body}
	}
	return response, err
}

// buffered reads by one and closes the other.
type buffered struct {
	io.Reader
	io.Closer
}

// WrappedRoundTripper lets client-go find the transport below.
func (r readAhead) WrappedRoundTripper() http.RoundTripper { return r.next }
