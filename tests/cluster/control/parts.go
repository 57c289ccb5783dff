// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

const etcdURL = "http://127.0.0.1:2379"

// StartEtcd runs etcd over what it had before, if it ran before, and waits until it answers.
func (p *Plane) StartEtcd(ctx context.Context) (err error) {
	peers := "http://127.0.0.1:2380"
	p.Etcd, err = p.run("etcd", []string{
		"--data-dir=" + p.File("etcd/data"), "--name=default", "--unsafe-no-fsync",
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers, "--initial-cluster=default=" + peers,
	})
	if err != nil {
		return err
	}
	return p.await(ctx, "etcd", p.Etcd, func(ctx context.Context) error { return p.get(ctx, etcdURL+"/health") })
}

// StartAPIServer runs kube-apiserver and waits until it is ready. To stop it: APIServer.Kill.
func (p *Plane) StartAPIServer(ctx context.Context) (err error) {
	began := time.Now()
	p.APIServer, err = p.run("kube-apiserver", slices.Concat([]string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=0.0.0.0", "--secure-port=6443", "--advertise-address=" + p.Host.V4.String(),
		"--tls-cert-file=" + p.File("apiserver.crt"), "--tls-private-key-file=" + p.File("apiserver.key"),
		"--client-ca-file=" + p.File("ca.crt"), "--cert-dir=" + p.Dir,
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + p.File("tokens.key"), "--service-account-signing-key-file=" + p.File("tokens.key"),
		"--service-cluster-ip-range=" + ServiceCIDRs, "--allow-privileged=true",
		"--audit-policy-file=" + p.File("audit.yaml"), "--audit-log-path=" + p.File("audit.log"), "--audit-log-mode=blocking",
	}, p.apiServerFlags(), p.options.APIServerFlags))
	if err != nil {
		return err
	}
	if err := p.AwaitReady(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starts = append(p.starts, span{began, time.Now()})
	return nil
}

// apiServerFlags are those that say whether there are kubelets.
func (p *Plane) apiServerFlags() []string {
	if !p.options.Kubelets {
		// Nobody makes default ServiceAccounts here, and no pod logs in.
		return []string{"--authorization-mode=RBAC", "--service-node-port-range=" + NodePorts, "--disable-admission-plugins=ServiceAccount"}
	}
	return []string{
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--kubelet-client-certificate=" + p.File("admin.crt"), "--kubelet-client-key=" + p.File("admin.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--audit-log-maxsize=50", "--audit-log-maxbackup=1", // MB: the cluster may live for long
	}
}

// StartControllers runs kube-controller-manager, whose controllers wait for the API server by themselves.
func (p *Plane) StartControllers(context.Context) (err error) {
	flags := []string{
		"--kubeconfig=" + p.File("admin.kubeconfig"), "--leader-elect=false", "--secure-port=0", "--kube-api-qps=200", "--kube-api-burst=400",
	}
	if p.options.Kubelets {
		flags = append(flags, "--root-ca-file="+p.File("ca.crt"), "--service-account-private-key-file="+p.File("tokens.key"))
	} else {
		controllers := append([]string{"endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller", "service-cidr-controller"}, p.options.Controllers...)
		flags = append(flags, "--controllers="+strings.Join(controllers, ","))
	}
	p.Controllers, err = p.run("kube-controller-manager", flags)
	return err
}

// startScheduler runs kube-scheduler, which waits for the API server by itself.
func (p *Plane) startScheduler(context.Context) (err error) {
	p.Scheduler, err = p.run("kube-scheduler", []string{"--kubeconfig=" + p.File("admin.kubeconfig"), "--leader-elect=false", "--secure-port=0"})
	return err
}

// run starts one of the programs on the control plane's host.
func (p *Plane) run(name string, flags []string) (*lab.Process, error) {
	return p.Host.Start(name, append([]string{p.program, name}, flags...))
}
