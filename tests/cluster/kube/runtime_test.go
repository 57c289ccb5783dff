// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// recovering is a containerd that tells its version, and nothing else until it knows its containers.
type recovering struct {
	runtime.UnimplementedRuntimeServiceServer
	knows chan struct{} // closed when it does
}

func (recovering) Version(context.Context, *runtime.VersionRequest) (*runtime.VersionResponse, error) {
	return &runtime.VersionResponse{}, nil
}

func (r recovering) ListContainers(context.Context, *runtime.ListContainersRequest) (*runtime.ListContainersResponse, error) {
	select {
	case <-r.knows:
		return &runtime.ListContainersResponse{}, nil
	default:
		return nil, errors.New("server is not initialized yet")
	}
}

func TestARuntimeThatStillLooksForItsContainersIsNotReady(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "runtime.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, r := grpc.NewServer(), recovering{knows: make(chan struct{})}
	runtime.RegisterRuntimeServiceServer(server, r)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	if err := askRuntime(t.Context(), socket); err == nil || !strings.Contains(err.Error(), "not initialized yet") {
		t.Errorf("while it looks for them: %v", err)
	}
	close(r.knows)
	if err := askRuntime(t.Context(), socket); err != nil {
		t.Error(err)
	}
}
