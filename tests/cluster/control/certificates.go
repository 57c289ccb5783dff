// SPDX-License-Identifier: Apache-2.0

package control

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// authority signs the certificates of one control plane, and writes them into a directory.
type authority struct {
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// newAuthority makes ca.crt.
func newAuthority(dir string) (*authority, error) {
	a := &authority{dir: dir}
	request := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "nearlb test"},
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	var err error
	if a.key, err = a.issue("ca", request); err != nil {
		return nil, err
	}
	a.certificate = request
	return a, nil
}

// server makes NAME.crt and NAME.key for who answers at these addresses.
func (a *authority) server(name string, addresses ...netip.Addr) error {
	request := &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
	}
	for _, address := range addresses {
		request.IPAddresses = append(request.IPAddresses, net.IP(address.AsSlice()))
	}
	_, err := a.issue(name, request)
	return err
}

// client makes NAME.crt and NAME.key for a user of groups.
func (a *authority) client(name, user string, groups ...string) error {
	_, err := a.issue(name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}

// issue signs a certificate, the authority's own by itself, and writes it with its key. It fills in the request.
func (a *authority) issue(name string, request *x509.Certificate) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if request.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return nil, err
	}
	request.NotBefore, request.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	request.KeyUsage |= x509.KeyUsageDigitalSignature
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = request, key
	}
	signed, err := x509.CreateCertificate(rand.Reader, request, parent, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", name, err)
	}
	if err := a.write(name+".crt", "CERTIFICATE", signed); err != nil {
		return nil, err
	}
	return key, a.writeKey(name+".key", key)
}

func (a *authority) writeKey(file string, key *ecdsa.PrivateKey) error {
	text, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return a.write(file, "EC PRIVATE KEY", text)
}

func (a *authority) write(file, kind string, content []byte) error {
	return os.WriteFile(a.file(file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600)
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }
