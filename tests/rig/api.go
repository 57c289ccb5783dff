// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"net"
	"net/netip"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/fakeapi"
)

// ServeAPI has an API server listen on a host outside, and writes how to log in into a file.
func ServeAPI(api *fakeapi.Server, host *lab.Outside, kubeconfig string) (*fakeapi.Running, error) {
	var listener net.Listener
	err := host.Do(func() (err error) {
		listener, err = net.Listen("tcp4", netip.AddrPortFrom(host.V4, 0).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	running := api.Start(listener)
	if err := running.WriteKubeconfig(kubeconfig); err != nil {
		running.Close()
		return nil, err
	}
	return running, nil
}
