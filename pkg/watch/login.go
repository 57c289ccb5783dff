// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Login says how to talk to the API server. The zero value is a pod of the cluster: its ServiceAccount, and the ClusterIP that
// it finds in its environment.
type Login struct {
	Kubeconfig string // file; "": the ServiceAccount of a pod
	// Servers are addresses of API servers in the place of the one that Kubeconfig or the environment names, as
	// https://192.0.2.1:6443. Of several one is asked as long as it answers.
	Servers   []string
	Node      string // whose agent this is: each begins with another of the Servers
	UserAgent string
	Log       *slog.Logger

	ServiceAccount string // directory of its token and CA; "": where the kubelet puts them
}

const (
	serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"
	// apiServerName is in the certificate of every API server that pods talk to, whatever its address.
	apiServerName = "kubernetes.default.svc"
	// dialTimeout is for the first of several servers, where it does not even refuse.
	dialTimeout = 5 * time.Second
)

// Config is how a client of pkg/watch/clientset is to ask.
func (l Login) Config() (*rest.Config, error) {
	config, err := l.config()
	if err != nil {
		return nil, err
	}
	config.UserAgent = l.UserAgent
	return tuned(config), nil
}

// tuned has a client read protobuf where a server has it, and what has come at once.
func tuned(config *rest.Config) *rest.Config {
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return readAhead{next} })
	return config
}

func (l Login) config() (*rest.Config, error) {
	servers, err := ParseServers(l.Servers)
	if err != nil {
		return nil, err
	}
	config, err := l.credentials(servers)
	if err != nil || len(servers) == 0 {
		return config, err
	}
	// Every node begins with another one.
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(l.Node)) // never fails
	first := int(hash.Sum32() % uint32(len(servers)))
	servers = slices.Concat(servers[first:], servers[:first])
	config.Host, config.APIPath = servers[0].String(), ""
	if len(servers) > 1 {
		config.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return &failover{next: next, servers: servers, log: l.Log}
		})
	}
	return config, nil
}

// credentials are those of the kubeconfig or of the pod.
func (l Login) credentials(servers []*url.URL) (*rest.Config, error) {
	if l.Kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", l.Kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("read --kubeconfig %s: %w", l.Kubeconfig, err)
		}
		return config, nil
	}
	if len(servers) == 0 {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("log in to the API server from inside the cluster: %w (outside, name --kubeconfig or --manifests)", err)
		}
		return config, nil
	}
	dir := serviceAccount
	if l.ServiceAccount != "" {
		dir = l.ServiceAccount
	}
	config := &rest.Config{BearerTokenFile: filepath.Join(dir, "token"), TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "ca.crt")}}
	if slices.ContainsFunc(servers, isAddress) {
		config.ServerName = apiServerName
	}
	return config, nil
}

// isAddress: a load balancer's certificate may not name its address, so TLS asks for a name that every API server's certificate has.
func isAddress(server *url.URL) bool {
	_, err := netip.ParseAddr(server.Hostname())
	return err == nil
}

// ParseServers reads addresses of API servers; https:// may be left out, and empty texts are.
func ParseServers(texts []string) (servers []*url.URL, err error) {
	for _, text := range texts {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		full := text
		if !strings.Contains(full, "://") {
			full = "https://" + full
		}
		server, err := url.Parse(full)
		if err == nil && (server.Scheme != "https" && server.Scheme != "http" || server.Hostname() == "" || server.User != nil ||
			strings.Trim(server.Path, "/") != "" || server.RawQuery != "" || server.Fragment != "") {
			err = errors.New("it is not of the form SCHEME://HOST:PORT")
		}
		if err != nil {
			return nil, fmt.Errorf("%q: want the address of an API server, as https://192.0.2.1:6443", text)
		}
		server.Path = ""
		servers = append(servers, server)
	}
	return servers, nil
}
