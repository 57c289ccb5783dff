// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// modeURL is where kube-proxy says its mode (--metrics-bind-address, its default).
const modeURL = "http://127.0.0.1:10249/proxyMode"

// Running says how a kube-proxy of this network namespace was seen to run; "": it was not. Its process is seen where the host's
// processes are; where it serves its metrics, it is asked.
func Running(ctx context.Context) string {
	if pid := process(); pid != "" {
		return "process " + pid
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, modeURL, http.NoBody)
	if err != nil {
		return ""
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	mode, _ := io.ReadAll(io.LimitReader(answer.Body, 64))
	if answer.StatusCode != http.StatusOK || !slices.Contains([]string{"nftables", "iptables", "ipvs"}, string(bytes.TrimSpace(mode))) {
		return ""
	}
	return fmt.Sprintf("mode %s", bytes.TrimSpace(mode))
}

// process is the number of a process of that name in the network namespace of the calling thread.
func process() string {
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return ""
	}
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range found {
		dir := filepath.Dir(path)
		if other, err := os.Readlink(filepath.Join(dir, "ns", "net")); err == nil && other == own && isKubeProxy(path) {
			return filepath.Base(dir)
		}
	}
	return ""
}

// isKubeProxy looks at a command line: the program's name, or that of one in a program that is several.
func isKubeProxy(path string) bool {
	text, err := os.ReadFile(path)
	words := bytes.SplitN(text, []byte{0}, 3)
	return err == nil && (filepath.Base(string(words[0])) == table || len(words) > 1 && string(words[1]) == table)
}
