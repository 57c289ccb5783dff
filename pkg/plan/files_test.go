// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
)

const objects = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  clusterIPs: [10.96.0.10, "2001:db8::10"]
  clusterIP: 10.96.0.10
  ports: [{port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-6, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: "", port: 80}]
endpoints:
- addresses: ["2001:db8:1::1"]
  nodeName: n1
`

// planOf is what the command prints, on both outputs, and its exit status.
func planOf(t *testing.T, stdin string, args ...string) (out, errs string, status int) {
	t.Helper()
	var printed, said strings.Builder
	status = Main(t.Context(), args, strings.NewReader(stdin), &printed, &said)
	return printed.String(), said.String(), status
}

func sixteen(order binary.AppendByteOrder, text string) string {
	var b []byte
	for _, unit := range utf16.Encode([]rune("\ufeff" + text)) {
		b = order.AppendUint16(b, unit)
	}
	return string(b)
}

// Files are written by editors and shells of all systems: one plan for one content, from a file and from standard input.
func TestLineEndsAndEncodingsMakeNoDifference(t *testing.T) {
	want, errs, status := planOf(t, objects, "-f", "-", "--node", "n1", "--zone", "a")
	if status != 0 || errs != "" || !strings.Contains(want, "2001:db8:1::1") {
		t.Fatalf("ended with %d:\n%s%s", status, want, errs)
	}
	windows := strings.ReplaceAll(objects, "\n", "\r\n")
	for name, text := range map[string]string{
		"line ends of Windows": windows, "UTF-8 with a mark": "\ufeff" + windows,
		"UTF-16 of PowerShell": sixteen(binary.LittleEndian, windows), "UTF-16, the other order": sixteen(binary.BigEndian, objects),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "objects of mine.yaml")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, from := range []string{"-", path, filepath.Dir(path)} {
				got, errs, status := planOf(t, text, "-f", from, "--node", "n1", "--zone", "a")
				if diff := cmp.Diff(want, got); status != 0 || errs != "" || diff != "" {
					t.Errorf("from %s: ended with %d: %s\n%s", from, status, errs, diff)
				}
			}
		})
	}
}

// A path that is not there is named as it was written, with its backslashes.
func TestAPathIsNamedAsItIsWritten(t *testing.T) {
	const path = `C:\objects\web.yaml`
	_, errs, status := planOf(t, "", "-f", path, "--node", "n1", "--zone", "a")
	if want := "nearlb: read " + path + ": "; status != 2 || !strings.HasPrefix(errs, want) {
		t.Errorf("ended with %d: %s, want %s", status, errs, want)
	}
}
