// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// cluster is an API server.
type cluster struct {
	config    *rest.Config
	client    *http.Client
	base      *url.URL
	namespace string // the context's
}

// connect reads the kubeconfig as kubectl does.
func connect(r *request) (*cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = r.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: r.context})
	config, err := loader.ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, fmt.Errorf("read kubeconfig: no cluster in %s: name another with --kubeconfig or KUBECONFIG", strings.Join(rules.GetLoadingPrecedence(), ", "))
	case err != nil:
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.UserAgent = "kubectl-nearlb"
	return newCluster(config, namespace)
}

func newCluster(config *rest.Config, namespace string) (*cluster, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("read the API server's address: %w", err)
	}
	return &cluster{config: config, client: client, base: base, namespace: namespace}, nil
}

// pod is what is needed of a Pod.
type pod struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Spec struct {
		NodeName    string `json:"nodeName"`
		HostNetwork bool   `json:"hostNetwork"`
	} `json:"spec"`
	Status struct {
		Phase             string `json:"phase"`
		PodIP             string `json:"podIP"`
		ContainerStatuses []struct {
			Name  string `json:"name"`
			State struct {
				Running *struct{} `json:"running"`
				Waiting *struct {
					Reason string `json:"reason"`
				} `json:"waiting"`
			} `json:"state"`
		} `json:"containerStatuses"`
	} `json:"status"`
}

// node is what is needed of a Node.
type node struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
}

// errForbidden: one may not read the object.
var errForbidden = errors.New("forbidden")

// forbidden is what the API server says of it, which has that word already.
type forbidden string

func (f forbidden) Error() string      { return string(f) }
func (forbidden) Is(target error) bool { return target == errForbidden }

// get reads an object, or one page of a list.
func (c *cluster) get(ctx context.Context, path string, query url.Values, into any) error {
	to := c.base.JoinPath(path)
	to.RawQuery = query.Encode()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return err
	}
	ask.Header.Set("Accept", "application/json")
	answer, err := c.client.Do(ask)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		var status struct {
			Message string `json:"message"`
		}
		if json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&status) != nil || status.Message == "" {
			status.Message = answer.Status
		}
		if answer.StatusCode == http.StatusForbidden {
			return forbidden(status.Message)
		}
		return errors.New(status.Message)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// list reads all pages.
func list[T any](ctx context.Context, c *cluster, path string, query url.Values) (all []T, err error) {
	query.Set("limit", "500")
	for {
		var page struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []T `json:"items"`
		}
		if err := c.get(ctx, path, query, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Metadata.Continue == "" {
			return all, nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

// run has a pod run a command, by WebSocket, or by SPDY where the server or something before it cannot. An exit status other than 0 is
// no error.
func (c *cluster) run(ctx context.Context, p *pod, container string, command []string, out, errs io.Writer) (status int, err error) {
	to := c.base.JoinPath("api/v1/namespaces", p.Metadata.Namespace, "pods", p.Metadata.Name, "exec")
	to.RawQuery = url.Values{"container": {container}, "command": command, "stdout": {"true"}, "stderr": {"true"}}.Encode()
	socket, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, to.String())
	if err != nil {
		return 0, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, to)
	if err != nil {
		return 0, err
	}
	either, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return 0, err
	}
	err = either.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: errs})
	var ended exec.CodeExitError
	switch {
	case errors.As(err, &ended):
		return ended.Code, nil
	case err != nil && ctx.Err() != nil:
		return 0, ctx.Err()
	case late(ctx, err):
		return 0, context.DeadlineExceeded
	case err != nil:
		return 0, errors.New(strings.TrimSpace(err.Error()))
	}
	return 0, nil
}
