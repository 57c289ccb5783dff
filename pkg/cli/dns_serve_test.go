// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/command"
)

func TestANameServerOfFilesAnswersUntilItsEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(`
apiVersion: v1
kind: Service
metadata: {name: web, namespace: prod}
spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	out, into := io.Pipe()
	ended := make(chan int, 1)
	var errOut bytes.Buffer
	go func() {
		status := run(ctx, []string{"dns", "serve", "-f", path, "--listen", "127.0.0.1:0", "--reverse-zone", "in-addr.arpa,ip6.arpa", "--ttl", "7"}, nil, into, &errOut)
		_ = into.Close()
		ended <- status
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "serving ")
	if err != nil || !ok {
		t.Fatalf("said %q, %v; status %d: %s", line, err, <-ended, &errOut)
	}
	for question, want := range map[wire.Question]string{
		{Name: "web.prod.svc.cluster.local.", Qtype: wire.TypeA}: "web.prod.svc.cluster.local.\t7\tIN\tA\t10.96.0.10",
		{Name: "10.0.96.10.in-addr.arpa.", Qtype: wire.TypePTR}:  "10.0.96.10.in-addr.arpa.\t7\tIN\tPTR\tweb.prod.svc.cluster.local.",
	} {
		q := new(wire.Msg)
		q.SetQuestion(question.Name, question.Qtype)
		m, err := wire.Exchange(q, address)
		if err != nil || len(m.Answer) != 1 || m.Answer[0].String() != want {
			t.Errorf("got %v, %v; want %s", m, err, want)
		}
	}
	stop()
	if status := <-ended; status != command.ExitDone {
		t.Errorf("status %d: %s", status, &errOut)
	}
}

func TestANameServerRefusesFlagsThatMakeNoSense(t *testing.T) {
	for _, row := range []struct{ args, want string }{
		{"--listen 127.0.0.1:0", "--filename is missing"},
		{"-f x.yaml", "--listen is missing"},
		{"-f x.yaml --listen 127.0.0.1", "want ADDR:PORT"},
		{"-f x.yaml --listen here:53", "want ADDR:PORT"},
		{"-f x.yaml --listen 127.0.0.1:99999", "want ADDR:PORT"},
		{"-f x.yaml --listen :0 --pods some", "--pods"},
		{"-f x.yaml --listen :0 --ttl 3601", "--ttl 3601"},
		{"-f x.yaml --listen :0 --zone a..b", "--zone"},
		{"-f x.yaml --listen :0 --zone=", `--zone "": want a domain name`},
		{"-f x.yaml --listen :0 --reverse-zone cluster.local", "--reverse-zone"},
		{"-f x.yaml --listen :0 --upstream resolver", "--upstream"},
		{"-f x.yaml --listen 127.0.0.1:5353 --upstream 192.0.2.53,127.0.0.1:5353", "--upstream 127.0.0.1:5353: this server answers there itself"},
		{"-f x.yaml --listen :53 --upstream ::1", "--upstream [::1]:53: this server"},
		{"-f x.yaml --listen :0 --own-address me", "--own-address"},
		{"-f /no/such/file --listen :0", "/no/such/file"},
	} {
		var errOut bytes.Buffer
		if status := run(t.Context(), append([]string{"dns", "serve"}, strings.Fields(row.args)...), nil, io.Discard, &errOut); status != command.ExitUsage || !strings.Contains(errOut.String(), row.want) {
			t.Errorf("%s: status %d, %s", row.args, status, &errOut)
		}
	}
}
