// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"io"
	"net"
	"net/http"
	"strings"
)

// get asks a server of the machine. The connection is made on the calling thread, which is in the machine's namespace.
func get(m *machine, url string) string {
	m.Helper()
	host, path, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	conn, err := net.Dial("tcp", host)
	m.must(err)
	defer conn.Close()
	request, err := http.NewRequest(http.MethodGet, "http://"+host+"/"+path, nil)
	m.must(err)
	request.Close = true
	m.must(request.Write(conn))
	text, err := io.ReadAll(conn)
	m.must(err)
	return string(text)
}
