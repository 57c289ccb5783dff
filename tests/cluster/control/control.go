// SPDX-License-Identifier: Apache-2.0

// Package control runs a real Kubernetes control plane for tests: etcd, kube-apiserver and kube-controller-manager as this module's
// go.mod pins them, on a host of their own behind the router of a lab. They die with the
// test, and their data was never on a disk.
//
//	l, err := lab.New(lab.Options{})
//	plane, err := control.Start(ctx, l, control.Options{})
//	err = plane.Apply(ctx, "manifests/base/rbac.yaml")
//	kubeconfig, err := plane.Login(ctx, "kube-system", "nearlb")   // for the agents: a token of their ServiceAccount
//	plane.Admin.CoreV1().Services("default").Create(...)           // the test itself may do everything
//	...
//	err = plane.CheckAudit("system:serviceaccount:kube-system:nearlb")
package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Service ranges of the cluster. Node ports include those below the usual ones, and none that agents listen on.
const (
	ServiceCIDRs = "10.96.0.0/16,fd96::/112"
	NodePorts    = "9000-10200"
)

// patience is how long a part may take to start on a machine that has better things to do.
const patience = 3 * time.Minute

// Options of a control plane. The zero value is one with the controllers that EndpointSlices come from.
type Options struct {
	Controllers    []string // of kube-controller-manager, besides those of EndpointSlices
	APIServerFlags []string // further ones
	// Kubelets has it be a whole one: pods are scheduled, have ServiceAccounts and log in, every controller works, and the API server reaches
	// the nodes. Node ports are the usual ones.
	Kubelets bool
}

// Plane is a control plane that runs. It ends with its lab.
type Plane struct {
	Host  *lab.Outside
	Admin kubernetes.Interface // who may do everything, from the control plane's own host
	Dir   string               // certificates, kubeconfigs, audit log

	APIServer, Controllers, Etcd *lab.Process
	Scheduler                    *lab.Process // with Kubelets alone

	lab     *lab.Lab
	options Options
	program string
	ca      *authority

	mu     sync.Mutex
	starts []span // of the API server, until it was ready
}

// Start makes a host outside for the control plane, starts its parts and waits until they work.
func Start(ctx context.Context, l *lab.Lab, options Options) (*Plane, error) {
	p := &Plane{lab: l, options: options}
	var err error
	if p.program, err = Program(); err != nil {
		return nil, err
	}
	if p.Host, err = l.AddOutside(lab.OutsideOptions{Name: "control"}); err != nil {
		return nil, err
	}
	if err := errors.Join(p.makeFiles(), p.connect()); err != nil {
		return nil, fmt.Errorf("prepare control plane: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	parts := []func(context.Context) error{p.StartEtcd, p.StartAPIServer, p.StartControllers}
	if options.Kubelets {
		parts = append(parts, p.startScheduler)
	}
	for _, start := range parts {
		if err := start(ctx); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// URL is where the API server is, for every host of the lab.
func (p *Plane) URL() string { return "https://" + p.Address().String() }

// Address is that of the API server.
func (p *Plane) Address() netip.AddrPort { return netip.AddrPortFrom(p.Host.V4, 6443) }

// makeFiles fills the directory with certificates, keys and configuration.
func (p *Plane) makeFiles() error {
	p.Dir = filepath.Join(p.lab.Dir, "control")
	etcd := filepath.Join(p.Dir, "etcd")
	if err := os.MkdirAll(etcd, 0o700); err != nil {
		return err
	}
	var err error
	if p.ca, err = newAuthority(p.Dir); err != nil {
		return err
	}
	tokens, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	return errors.Join(
		p.ca.writeKey("tokens.key", tokens),
		p.ca.server("apiserver", p.Host.V4, p.Host.V6, loopback, netip.MustParseAddr("10.96.0.1")),
		p.ca.client("admin", "admin", "system:masters"),
		os.WriteFile(p.File("audit.yaml"), []byte(auditPolicy), 0o600),
		p.writeKubeconfig("admin.kubeconfig", login{certificate: "admin"}),
		p.lab.MountMemory(etcd),
	)
}

// connect makes the administrator's client, whose connections are of the control plane's own host.
func (p *Plane) connect() error {
	client, err := kubernetes.NewForConfig(p.Config())
	p.Admin = client
	return err
}

// Config is how the test itself logs in, as the administrator.
func (p *Plane) Config() *rest.Config {
	return &rest.Config{
		Host: p.URL(),
		QPS:  -1,
		// Tests write v1 Endpoints on purpose, as old programs do.
		WarningHandler: rest.NoWarnings{},
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: p.File("ca.crt"), CertFile: p.File("admin.crt"), KeyFile: p.File("admin.key"),
		},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			var conn net.Conn
			err := p.Host.Do(func() (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}
}

// File is one of the directory.
func (p *Plane) File(name string) string { return filepath.Join(p.Dir, name) }

// AwaitReady waits until the API server says that it is ready, and has made the namespaces of the system, which it does by the way.
func (p *Plane) AwaitReady(ctx context.Context) error {
	return p.await(ctx, "API server", p.APIServer, func(ctx context.Context) error {
		if err := p.Admin.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
			return err
		}
		_, err := p.Admin.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		return err
	})
}

// AwaitRight waits until the API server lets a user do something: it knows of roles and bindings a moment after they were applied.
func (p *Plane) AwaitRight(ctx context.Context, user string, right authorizationv1.ResourceAttributes) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &right}}
	return p.await(ctx, "API server", p.APIServer, func(ctx context.Context) error {
		answer, err := p.Admin.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = fmt.Errorf("%s may not %s %s", user, right.Verb, right.Resource)
		}
		return err
	})
}

// await asks a part again and again until it works or is gone. The error says what it said itself.
func (p *Plane) await(ctx context.Context, what string, part *lab.Process, works func(context.Context) error) error {
	for {
		once, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := works(once)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-part.Ended():
			return fmt.Errorf("start %s: it ended: %s", what, tail(part.Log))
		case <-ctx.Done():
			return fmt.Errorf("start %s: %w: %s", what, err, tail(part.Log))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// tail is the end of a file.
func tail(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// get asks over HTTP on the control plane's host itself.
func (p *Plane) get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: p.Config().Dial, DisableKeepAlives: true}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", url, answer.Status)
	}
	return nil
}
