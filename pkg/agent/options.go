// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/metrics"
	"github.com/nearlb/nearlb/pkg/ui"
	"github.com/nearlb/nearlb/pkg/watch"
)

// Options are what the flags of `nearlb agent` say. DefaultOptions has the defaults; NodeName is required.
type Options struct {
	NodeName string // --node-name: metadata.name of the Node, nodeName of its endpoints

	Kubeconfig string   // --kubeconfig; "" and no Manifests: in-cluster configuration
	APIServers []string // --api-server: addresses instead of the one that the kubeconfig or the environment has
	Manifests  string   // --manifests: directory of objects, instead of an API server

	Settings Settings // --config-dir: values of flags that neither the command line nor the environment has

	PinPath string // --pin-path, on a bpffs
	LockDir string // --lock-dir: lock and status file

	PodDevices   []string      // --pod-devices: shell patterns; empty: found by themselves
	NetDevices   []string      // --net-devices: shell patterns; empty: found by themselves
	AttachMethod attach.Method // --attach: tcx, clsact, or "" for the best there is

	SocketLB attach.SocketMode // --socket-lb: whose sockets are served as they connect
	Cgroup   string            // --cgroup: directory of the cgroup that those sockets are in; "": the whole cgroup2 hierarchy

	SNATPorts    maps.PortRange // --snat-ports: source ports of external clients' connections to backends on other nodes
	SNATAllPorts bool           // --snat-all-ports: the other ones from 1024 on, too, where these are used up and connection tracking can be asked

	OffNode   lb.OffNode // --off-node: how clients off the node get to backends on other nodes, where the Service says nothing
	CarryPort uint16     // --carry-port: UDP port of the tunnel between nodes, the same on all; 0: DefaultCarryPort where OffNode wants it

	leaving *leavingTunnel // where these ask for no tunnel, and an earlier agent had one; nil: else

	Heartbeats lb.Ejection // --node-heartbeats: what becomes of backends of nodes that do not answer this one; "": on with TunnelKeyFile, else off

	TunnelKeyFile string // --tunnel-key-file: keys that nodes share, followed as they change; "": nodes show each other no cookie

	Shortcut ShortcutMode // --shortcut: whether translated packets leave past the host's stack

	XDP attach.XDPMode // --xdp: which network devices' packets are taken before the host's stack

	Zone              string              // --zone, instead of the Node's label
	NodeIPs           []netip.Addr        // --node-ip, instead of the Node's addresses
	NodePortAddresses []string            // --nodeport-addresses: CIDRs or "primary"
	ExternalIPs       lb.ExternalIPPolicy // --external-ips: which of Services' external IPs are served
	KeepNodeless      bool                // --infer-nodes=false: endpoints without nodeName are on no node
	ServiceCIDRs      []netip.Prefix      // --service-cidr, instead of ServiceCIDR objects
	ProxyName         string              // --service-proxy-name: only Services with this label are served, beside another proxy

	Ejection lb.Ejection // --ejection: what becomes of backends that do not answer, where the Service says nothing

	Sizes     bpf.Sizes  // --size-...: upper bounds of tables; zero: those of bpf.DefaultLimits, and flows by the node's memory
	Loopback4 netip.Addr // --loopback4: source of hairpin connections; zero: the default of package maps
	Loopback6 netip.Addr // --loopback6, likewise

	HealthAddress  string // --health-address: /healthz, /livez and /readyz; "": none
	MetricsAddress string // --metrics-address: /metrics; "": none

	Page http.Handler `json:"-"` // --ui: served below PagePath of MetricsAddress, which must be a loopback address; nil: none

	SeriesLimits metrics.Limits // --metrics-services, --metrics-backends: how many of them have series of their own

	AuditEvery   time.Duration // --audit-interval: how often live tables are compared with what was published
	ReclaimEvery time.Duration // how often what nobody uses any more is freed
	Debounce     time.Duration // --debounce: the least time between two publications of one Service that has changed ten times in as many of it

	// DropPrivileges has the process give away, for good, the capabilities that only the start wants. The command line sets it.
	DropPrivileges bool
	// Loader is the command of ServeLoader, which loads programs for an agent that dropped its privileges. nil: tables of such a one
	// do not grow.
	Loader []string

	Names NameOptions // --dns: answer names for the node's pods

	MassDeletion watch.Guard // --mass-deletion-grace, --mass-deletion-percent: how long objects that an API server suddenly lacks stay in force

	Version string
	Log     *slog.Logger

	// For tests.
	Source watch.Source                            // read instead of an API server or a directory
	Load   func(bpf.Options) (*bpf.Objects, error) `json:"-"` // instead of bpf.Load
	Reload bool                                    // load programs, though those that an earlier agent pinned would do
	Wrote  func()                                  `json:"-"` // see maps.Tables.Watch
	Memory uint64                                  // bytes of the node's, by which tables are sized; 0: what the kernel says
}

// spareOfLimit is the share of a memory limit of the agent's cgroup, which tables count for, that these may take without need.
const spareOfLimit = 8

// room plans the sizes of tables by the flags and the memory that the node and the agent's cgroup have.
func (o Options) room() bpf.Room {
	memory := o.Memory
	if memory == 0 {
		memory = bpf.NodeMemory()
	}
	room := bpf.NewRoom(bpf.Limits{Sizes: o.Sizes}, memory)
	if limit, err := memlimit.FromCgroup(); err == nil {
		room.Spare = min(room.Spare, limit/spareOfLimit)
	}
	return room
}

// DefaultOptions are the defaults of all flags but NodeName.
func DefaultOptions() Options {
	return Options{
		PinPath:        bpf.DefaultPinPath,
		LockDir:        bpf.DefaultLockDir,
		SocketLB:       attach.HostSockets,
		SNATPorts:      maps.DefaultSNATPorts(),
		SNATAllPorts:   true,
		OffNode:        lb.OffNodeSNAT,
		Shortcut:       ShortcutOff,
		XDP:            attach.XDPOff,
		Ejection:       lb.EjectionOn,
		Sizes:          bpf.DefaultLimits().Sizes,
		HealthAddress:  ":10256",
		MetricsAddress: "127.0.0.1:10249",
		SeriesLimits:   metrics.DefaultLimits(),
		AuditEvery:     30 * time.Minute,
		ReclaimEvery:   5 * time.Second,
		Debounce:       100 * time.Millisecond,
		MassDeletion:   watch.Guard{Grace: 5 * time.Minute, Percent: 50},
		Names:          DefaultNameOptions(),
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
	case len(o.APIServers) > 0 && o.Manifests != "":
		return errors.New("--manifests and --api-server: want one source of objects")
	case o.PinPath == "":
		return errors.New("--pin-path: want a directory on a bpffs")
	case o.LockDir == "":
		return errors.New("--lock-dir: want a directory")
	case o.Loopback4.IsValid() && !o.Loopback4.Is4():
		return fmt.Errorf("--loopback4 %v: want an IPv4 address", o.Loopback4)
	case o.Loopback6.IsValid() && (!o.Loopback6.Is6() || o.Loopback6.Is4In6()):
		return fmt.Errorf("--loopback6 %v: want an IPv6 address", o.Loopback6)
	case o.SNATPorts.Count() == 0:
		return fmt.Errorf("--snat-ports %s: want FIRST-LAST, as 61000-65535", o.SNATPorts)
	case !slices.Contains(lb.OffNodes(), o.OffNode):
		return fmt.Errorf("--off-node %q: want snat, carry or dsr", o.OffNode)
	case o.tunnelPort() != 0 && (o.tunnelPort() < 1024 || o.SNATPorts.Contains(o.tunnelPort())):
		return fmt.Errorf("--carry-port %d: want a port from 1024 on that is none of --snat-ports %s", o.tunnelPort(), o.SNATPorts)
	case o.heartbeats() != lb.EjectionOff && (hearsayPort(o.tunnelPort()) == 0 || o.SNATPorts.Contains(hearsayPort(o.tunnelPort()))):
		return fmt.Errorf("--carry-port %d: want a port behind which there is one that is none of --snat-ports %s: heartbeats use both", o.tunnelPort(), o.SNATPorts)
	case o.Heartbeats != "" && !slices.Contains(lb.Ejections(), o.Heartbeats):
		return fmt.Errorf("--node-heartbeats %q: want off, observe or on", o.Heartbeats)
	case o.heartbeats() != lb.EjectionOff && o.TunnelKeyFile == "":
		return fmt.Errorf("--node-heartbeats %s: want --tunnel-key-file, a key that nodes share", o.Heartbeats)
	case !slices.Contains(lb.Ejections(), o.Ejection):
		return fmt.Errorf("--ejection %q: want off, observe or on", o.Ejection)
	case o.AuditEvery <= 0 || o.ReclaimEvery <= 0:
		return errors.New("--audit-interval: want a time above zero")
	case o.SeriesLimits.Services < 0 || o.SeriesLimits.Backends < 0:
		return errors.New("--metrics-services, --metrics-backends: want a number of zero or more")
	case o.Debounce < 0:
		return errors.New("--debounce: want a time of zero or more")
	case o.Page != nil && ui.CheckLocal(o.MetricsAddress) != nil:
		return fmt.Errorf("--ui --metrics-address %w: the page is for this host alone", ui.CheckLocal(o.MetricsAddress))
	}
	return errors.Join(o.MassDeletion.Check(), o.Names.check(), checkAddress("--health-address", o.HealthAddress), checkAddress("--metrics-address", o.MetricsAddress),
		checkPatterns("--pod-devices", "veth*,lxc*", o.PodDevices), checkPatterns("--net-devices", "eth*,vxlan*", o.NetDevices), checkKubeconfig(o.Kubeconfig), checkServers(o.APIServers), o.nodeConfig().Validate())
}

// DefaultCarryPort is the tunnel's where nothing else is said: one that nothing is registered for, and none of Geneve's own, which networks
// between pods may use.
const DefaultCarryPort = 6091

// tunnelPort is the UDP port of the tunnel between nodes; 0: there is none.
func (o Options) tunnelPort() uint16 {
	if o.leaving != nil {
		return o.leaving.port
	}
	if o.CarryPort == 0 && (o.OffNode.Tunneled() || o.heartbeats() != lb.EjectionOff) {
		return DefaultCarryPort
	}
	return o.CarryPort
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

func checkPatterns(flag, example string, patterns []string) error {
	for _, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return fmt.Errorf("%s %q: want shell patterns, as %s", flag, pattern, example)
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

func checkServers(texts []string) error {
	if _, err := watch.ParseServers(texts); err != nil {
		return fmt.Errorf("--api-server %w", err)
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
		KeepNodeless:      o.KeepNodeless,
		ExternalIPs:       o.ExternalIPs,
		ServiceCIDRs:      o.ServiceCIDRs,
		ProxyName:         o.ProxyName,
		AllNodes:          o.tunnelPort() != 0,
	}
}
