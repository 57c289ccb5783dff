// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http/httptest"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Running is a server on an address.
type Running struct{ server *httptest.Server }

// certified is the name that the certificate is for.
const certified = "example.com"

// Start serves over TLS and HTTP/2 on a listener, which it owns from here on. It may be in any network namespace.
func (s *Server) Start(on net.Listener) *Running {
	server := httptest.NewUnstartedServer(s)
	_ = server.Listener.Close() // its own
	server.Listener = on
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // clients come and go
	server.StartTLS()
	return &Running{server}
}

// Config is how a client logs in.
func (r *Running) Config() *rest.Config {
	return &rest.Config{Host: r.server.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{ServerName: certified, CAData: r.authority()}}
}

// WriteKubeconfig writes the same into a file.
func (r *Running) WriteKubeconfig(file string) error {
	return clientcmd.WriteToFile(api.Config{
		Clusters: map[string]*api.Cluster{"fake": {
			Server: r.server.URL, TLSServerName: certified, CertificateAuthorityData: r.authority(),
		}},
		AuthInfos:      map[string]*api.AuthInfo{"anybody": {Token: "none"}},
		Contexts:       map[string]*api.Context{"fake": {Cluster: "fake", AuthInfo: "anybody"}},
		CurrentContext: "fake",
	}, file)
}

func (r *Running) authority() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.server.Certificate().Raw})
}

// Close cuts all connections and ends the server.
func (r *Running) Close() {
	r.server.CloseClientConnections()
	r.server.Close()
}
