// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"github.com/nearlb/nearlb/pkg/lab"
)

// page is what a host was told over HTTP.
type page struct {
	code   int
	header http.Header
	text   string
}

// get asks over HTTP with a connection of its own, from the host's namespace.
func get(from host, at netip.AddrPort, path string) (page, error) {
	client := http.Client{
		Timeout: lab.Patience,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return from.Dial(ctx, "tcp", at, lab.DialOptions{})
			},
		},
	}
	answer, err := client.Get(fmt.Sprintf("http://%v%s", at, path))
	if err != nil {
		return page{}, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return page{answer.StatusCode, answer.Header, string(text)}, err
}
