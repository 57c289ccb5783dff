// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// login is how a kubeconfig proves who somebody is: by a certificate, or by a token.
type login struct{ certificate, token string }

// writeKubeconfig makes a kubeconfig for any host of the lab.
func (p *Plane) writeKubeconfig(name string, as login) error {
	user := &api.AuthInfo{Token: as.token}
	if as.certificate != "" {
		user.ClientCertificate, user.ClientKey = p.File(as.certificate+".crt"), p.File(as.certificate+".key")
	}
	return clientcmd.WriteToFile(api.Config{
		Clusters:       map[string]*api.Cluster{"test": {Server: p.URL(), CertificateAuthority: p.File("ca.crt")}},
		AuthInfos:      map[string]*api.AuthInfo{"user": user},
		Contexts:       map[string]*api.Context{"test": {Cluster: "test", AuthInfo: "user"}},
		CurrentContext: "test",
	}, p.File(name))
}

// Login makes a kubeconfig with a token of a ServiceAccount, signed by the API server, and nothing else. It gives its file.
func (p *Plane) Login(ctx context.Context, namespace, account string) (string, error) {
	lifetime := int64(4 * 3600)
	token, err := p.Admin.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &lifetime},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("ask for a token of ServiceAccount %s/%s: %w", namespace, account, err)
	}
	name := fmt.Sprintf("%s.%s.kubeconfig", namespace, account)
	return p.File(name), p.writeKubeconfig(name, login{token: token.Status.Token})
}

// Certify makes a kubeconfig for a user of groups with a client certificate, as kubelets and kube-proxy have. It gives its file.
func (p *Plane) Certify(user string, groups ...string) (string, error) {
	if err := p.ca.client(user, user, groups...); err != nil {
		return "", err
	}
	return p.File(user + ".kubeconfig"), p.writeKubeconfig(user+".kubeconfig", login{certificate: user})
}
