// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	coredefaults "k8s.io/kubernetes/pkg/apis/core/v1"
	discoverydefaults "k8s.io/kubernetes/pkg/apis/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	utilnode "k8s.io/kubernetes/pkg/util/node"

	"github.com/nearlb/nearlb/tests/worlds"
)

// kubeProxy is what kube-proxy knows, as two proxiers: one for each family.
type kubeProxy struct {
	family    corev1.IPFamily
	ports     proxy.ServicePortMap
	endpoints proxy.EndpointsMap
	labels    map[string]string // of the own Node
	nodeIP    net.IP            // nil: none of the family
	nodePorts []netip.Addr      // addresses that answer NodePorts
}

// askKubeProxy feeds the world to kube-proxy's own trackers as its informers would, and reads its answers.
func askKubeProxy(w world) answers {
	out := newAnswers()
	w = w.asStored()
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		newKubeProxy(w, family).answer(out)
	}
	return out
}

// asStored is the world with what the API server fills in, by its own defaulting functions.
func (w world) asStored() world {
	out := world{worlds.World{Nodes: w.Nodes, NodePortAddresses: w.NodePortAddresses}}
	for _, s := range w.Services {
		s = s.DeepCopy()
		coredefaults.SetObjectDefaults_Service(s)
		if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 { // the registry's NormalizeClusterIPs
			s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		}
		out.Services = append(out.Services, s)
	}
	for _, s := range w.Slices {
		s = s.DeepCopy()
		discoverydefaults.SetObjectDefaults_EndpointSlice(s)
		out.Slices = append(out.Slices, s)
	}
	return out
}

func newKubeProxy(w world, family corev1.IPFamily) *kubeProxy {
	k := &kubeProxy{family: family, ports: proxy.ServicePortMap{}, endpoints: proxy.EndpointsMap{}}
	for _, n := range w.Nodes {
		if n.Name == worlds.Self {
			k.isOn(n, w.NodePortAddresses)
		}
	}
	services := proxy.NewServiceChangeTracker(family, nil, nil)
	for _, s := range w.Services {
		if watchesService(s) {
			services.Update(nil, k.reached(s))
		}
	}
	k.ports.Update(services)
	endpoints := proxy.NewEndpointsChangeTracker(family, worlds.Self, nil, nil)
	for _, s := range w.Slices {
		if watchesSlice(s) {
			endpoints.EndpointSliceUpdate(s, false)
		}
	}
	k.endpoints.Update(endpoints)
	return k
}

// reached is the Service without the node ports that no address of the node answers: kube-proxy makes lists of endpoints for
// them, which nothing leads to.
func (k *kubeProxy) reached(s *corev1.Service) *corev1.Service {
	if len(k.nodePorts) > 0 {
		return s
	}
	s = s.DeepCopy()
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 0
	}
	return s
}

// watchesService is kube-proxy's label and field selector (cmd/kube-proxy/app).
func watchesService(s *corev1.Service) bool {
	_, other := s.Labels["service.kubernetes.io/service-proxy-name"]
	return !other && s.Spec.ClusterIP != corev1.ClusterIPNone
}

// watchesSlice is kube-proxy's label selector.
func watchesSlice(s *discoveryv1.EndpointSlice) bool {
	_, headless := s.Labels[corev1.IsHeadlessService]
	return !headless
}

// isOn reads the own Node. Its addresses stand for those of the host's devices.
func (k *kubeProxy) isOn(n *corev1.Node, nodePortAddresses []string) {
	k.labels = n.Labels
	nodeIPs, _ := utilnode.GetNodeHostIPs(n)
	for _, ip := range nodeIPs {
		if proxyutil.GetIPFamilyFromIP(ip) == k.family {
			k.nodeIP = ip
		}
	}
	if slices.Equal(nodePortAddresses, []string{"primary"}) { // cmd/kube-proxy/app: NewProxyServer
		nodePortAddresses = nil
		for _, ip := range nodeIPs {
			nodePortAddresses = append(nodePortAddresses, address(ip).String()+fmt.Sprintf("/%d", address(ip).BitLen()))
		}
		if k.nodeIP == nil {
			return
		}
	}
	ips, _ := proxyutil.NewNodePortAddresses(k.family, nodePortAddresses).GetNodeIPs(devices{n, k.family})
	for _, ip := range ips {
		k.nodePorts = append(k.nodePorts, address(ip))
	}
}

// devices are a host's network devices with the addresses of its Node.
type devices struct {
	node   *corev1.Node
	family corev1.IPFamily
}

func (d devices) InterfaceAddrs() (out []net.Addr, _ error) {
	for _, a := range d.node.Status.Addresses {
		ip := net.ParseIP(a.Address)
		if ip != nil && proxyutil.GetIPFamilyFromIP(ip) == d.family {
			out = append(out, &net.IPNet{IP: ip})
		}
	}
	return out, nil
}

// answer says what the family's proxier would do.
func (k *kubeProxy) answer(out answers) {
	for name, info := range k.ports {
		k.servicePort(out, name, info)
	}
	local := k.endpoints.LocalReadyEndpoints()
	for name, port := range k.ports.HealthCheckNodePorts() {
		out.health(name.String(), k.family == corev1.IPv4Protocol, port, local[name])
	}
}

// servicePort is the part of the nftables proxier's syncProxyRules that says which chain gets which address, and what is in it.
func (k *kubeProxy) servicePort(out answers, name proxy.ServicePortName, info proxy.ServicePort) {
	cluster, local, reachable, hasAny := proxy.CategorizeEndpoints(k.endpoints[name], info, worlds.Self, k.labels)
	list := func(policyLocal bool) string {
		if policyLocal {
			return side(hasAny, names(local))
		}
		return side(hasAny, names(cluster))
	}
	row := frontend{port: name.Port, protocol: string(name.Protocol), service: name.NamespacedName.String()}
	if info.SessionAffinityType() == corev1.ServiceAffinityClientIP {
		row.affinity = info.StickyMaxAgeSeconds()
	}
	row.internal, row.external = list(info.InternalPolicyLocal()), list(info.InternalPolicyLocal())
	row.kind, row.ip, row.number = clusterIP, address(info.ClusterIP()), info.Port()
	out.add(row)

	row.internal, row.external = list(false), list(info.ExternalPolicyLocal())
	for _, ip := range info.ExternalIPs() {
		row.kind, row.ip = externalIP, address(ip)
		out.add(row)
	}
	for _, ip := range info.LoadBalancerVIPs() {
		row.kind, row.ip, row.ranges = loadBalancer, address(ip), k.ranges(info)
		out.add(row)
	}
	row.ranges = nil
	for _, ip := range k.nodePorts {
		if info.NodePort() != 0 {
			row.kind, row.ip, row.number = nodePort, ip, info.NodePort()
			out.add(row)
		}
	}
	out.reachable(name.String()+"/"+string(name.Protocol), k.family == corev1.IPv4Protocol, names(reachable))
}

// ranges are the sources that may pass the firewall chain of the load balancer addresses.
func (k *kubeProxy) ranges(info proxy.ServicePort) (out []netip.Prefix) {
	withNode := false
	for _, cidr := range info.LoadBalancerSourceRanges() {
		bits, _ := cidr.Mask.Size()
		out = append(out, netip.PrefixFrom(address(cidr.IP), bits))
		withNode = withNode || k.nodeIP != nil && cidr.Contains(k.nodeIP)
	}
	for _, ip := range info.LoadBalancerVIPs() {
		if withNode {
			out = append(out, netip.PrefixFrom(address(ip), address(ip).BitLen()))
		}
	}
	return out
}

func names(endpoints []proxy.Endpoint) (out []string) {
	for _, e := range endpoints {
		out = append(out, e.String())
	}
	return out
}

func address(ip net.IP) netip.Addr {
	out, _ := netip.AddrFromSlice(ip)
	return out.Unmap()
}
