// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nearlb/nearlb/pkg/lab"
)

// awaitRuntime waits until the node's containerd answers what kubelets ask: it refuses that until it has found its containers again, long
// after it listens and says its version.
func (n *Node) awaitRuntime(ctx context.Context) (err error) {
	_ = lab.Await(patience, func() bool {
		err = askRuntime(ctx, n.Path(containerdSocket))
		return err == nil || ctx.Err() != nil
	})
	return errors.Join(err, ctx.Err())
}

// askRuntime asks the runtime that listens on a Unix socket for its containers, as a kubelet does.
func askRuntime(ctx context.Context, socket string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := runtime.NewRuntimeServiceClient(conn).ListContainers(ctx, &runtime.ListContainersRequest{}); err != nil {
		return fmt.Errorf("ask containerd for its containers: %w", err)
	}
	return nil
}
