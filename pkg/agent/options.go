// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path"
	"strconv"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/watch"
)

// Options are what the flags of `nearlb agent` say. DefaultOptions has the defaults; NodeName is required.
type Options struct {
	NodeName string // --node-name: metadata.name of the Node, nodeName of its endpoints

	Kubeconfig string // --kubeconfig; "" and no Manifests: in-cluster configuration
	Manifests  string // --manifests: directory of objects, instead of an API server

	PinPath string // --pin-path, on a bpffs
	LockDir string // --lock-dir: lock and status file

	PodDevices   []string      // --pod-devices: shell patterns; empty: found by themselves
	AttachMethod attach.Method // --attach: tcx, clsact, or "" for the best there is

	Zone              string         // --zone, instead of the Node's label
	NodeIPs           []netip.Addr   // --node-ip, instead of the Node's addresses
	NodePortAddresses []string       // --nodeport-addresses: CIDRs or "primary"
	ServiceCIDRs      []netip.Prefix // --service-cidr, instead of ServiceCIDR objects

	Sizes     bpf.Sizes  // --size-...: capacities of tables that do not exist yet
	Loopback4 netip.Addr // --loopback4: source of hairpin connections; zero: the default of package maps
	Loopback6 netip.Addr // --loopback6, likewise

	HealthAddress  string // --health-address: /healthz and /livez; "": none
	MetricsAddress string // --metrics-address: /metrics; "": none

	AuditEvery   time.Duration // --audit-interval: how often live tables are compared with what was published
	ReclaimEvery time.Duration // how often what nobody uses any more is freed
	Debounce     time.Duration // --debounce: the least time between two publications of one Service

	Version string
	Log     *slog.Logger

	// Source is read instead of an API server or a directory: for tests.
	Source watch.Source
}

// DefaultOptions are the defaults of all flags but NodeName.
func DefaultOptions() Options {
	return Options{
		PinPath:        bpf.DefaultPinPath,
		LockDir:        bpf.DefaultLockDir,
		Sizes:          bpf.DefaultSizes(),
		HealthAddress:  ":10256",
		MetricsAddress: "127.0.0.1:10249",
		AuditEvery:     30 * time.Minute,
		ReclaimEvery:   5 * time.Second,
		Debounce:       100 * time.Millisecond,
		Version:        "unknown",
	}
}

// Check refuses options that cannot work; the error names the flag.
func (o Options) Check() error {
	switch {
	case o.NodeName == "":
		return errors.New("--node-name: want the name of this node, as in the EndpointSlices' nodeName")
	case o.Kubeconfig != "" && o.Manifests != "":
		return errors.New("--manifests and --kubeconfig: want one source of objects")
	case o.PinPath == "":
		return errors.New("--pin-path: want a directory on a bpffs")
	case o.LockDir == "":
		return errors.New("--lock-dir: want a directory")
	case o.Loopback4.IsValid() && !o.Loopback4.Is4():
		return fmt.Errorf("--loopback4 %v: want an IPv4 address", o.Loopback4)
	case o.Loopback6.IsValid() && (!o.Loopback6.Is6() || o.Loopback6.Is4In6()):
		return fmt.Errorf("--loopback6 %v: want an IPv6 address", o.Loopback6)
	case o.AuditEvery <= 0 || o.ReclaimEvery <= 0:
		return errors.New("--audit-interval: want a time above zero")
	case o.Debounce < 0:
		return errors.New("--debounce: want a time of zero or more")
	}
	return errors.Join(checkAddress("--health-address", o.HealthAddress), checkAddress("--metrics-address", o.MetricsAddress),
		checkPatterns(o.PodDevices), checkKubeconfig(o.Kubeconfig), o.nodeConfig().Validate())
}

// checkAddress refuses what no server could ever listen on; "" is no server.
func checkAddress(flag, address string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%s %q: want an address with a port, as :10256 or 127.0.0.1:10249", flag, address)
	}
	return nil
}

func checkPatterns(patterns []string) error {
	for _, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return fmt.Errorf("--pod-devices %q: want shell patterns, as veth*,lxc*", pattern)
		}
	}
	return nil
}

func checkKubeconfig(file string) error {
	if file == "" {
		return nil
	}
	if _, err := clientcmd.LoadFromFile(file); err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	return nil
}

// nodeConfig is what the source wants to know.
func (o Options) nodeConfig() watch.NodeConfig {
	return watch.NodeConfig{
		Name:              o.NodeName,
		Zone:              o.Zone,
		IPs:               o.NodeIPs,
		NodePortAddresses: o.NodePortAddresses,
		ServiceCIDRs:      o.ServiceCIDRs,
	}
}
