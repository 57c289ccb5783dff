// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/control"
	"github.com/nearlb/nearlb/tests/cluster/rig"
	"github.com/nearlb/nearlb/tests/daemonset"
)

// renderer is the program that renders, built once: go run looks at all that it is made of each time.
var renderer = sync.OnceValues(func() (string, error) { return control.BuildOf("render", "tests/manifests", "./render") })

// rendered is what a user applies: a directory of manifests/, or the chart with values.
func rendered(t *testing.T, args ...string) []byte {
	t.Helper()
	program, err := renderer()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = filepath.Join(filepath.Dir(rig.Manifest("")), "tests", "manifests")
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("render %v: %v", args, err)
	}
	return text
}

func TestWhatIsInstalledWorksInARealCluster(t *testing.T) {
	c := rig.Shared(t)
	t.Run("the API server takes it", func(t *testing.T) { takes(c.For(t)) })
	t.Run("without kube-proxy", func(t *testing.T) { withoutKubeProxy(c.For(t)) })
	t.Run("beside kube-proxy", func(t *testing.T) { besideKubeProxy(c.For(t)) })
	t.Run("in kube-proxy's place", func(t *testing.T) { inKubeProxysPlace(c.For(t)) })
}

// takes applies everything server-side, strictly, and makes a pod of each template, as the DaemonSet's controller does.
func takes(c *rig.Cluster) {
	t := c.T
	var texts [][]byte
	for _, overlay := range []string{"base", "overlays/replace-kube-proxy", "overlays/trial", "overlays/handover", "overlays/handover-alone"} {
		texts = append(texts, rendered(t, overlay))
	}
	for _, values := range []string{
		"{}", "{replaceKubeProxy: true, mountBpffs: false, seccompProfile: Unconfined}", "{trial: {enabled: true}}",
		"{apiServers: ['https://192.0.2.1:6443'], flags: {socket-lb: all}, nodeSelector: {a: b}, podLabels: {c: d}, imagePullSecrets: [{name: e}]}",
		"{metricsAddress: ':10249', metrics: {service: {enabled: true, annotations: {prometheus.io/scrape: 'true'}}}}",
	} {
		texts = append(texts, rendered(t, "helm", values))
	}
	for _, text := range texts {
		if err := c.Plane.ApplyText(t.Context(), text, metav1.ApplyOptions{}); err != nil {
			t.Errorf("%v in\n%s", err, text)
			continue
		}
		set, err := daemonset.Read(text)
		if err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{ObjectMeta: *set.Spec.Template.ObjectMeta.DeepCopy(), Spec: set.Spec.Template.Spec}
		pod.Name = "nearlb-x"
		if _, err := c.API.CoreV1().Pods("kube-system").Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			t.Errorf("its pod: %v", err)
		}
	}
	policy, err := os.ReadFile(rig.Manifest("monitoring/networkpolicy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	policy = bytes.Replace(policy, []byte("namespace: monitoring"), []byte("namespace: kube-system"), 1) // there is no other one
	if err := c.Plane.ApplyText(t.Context(), policy, metav1.ApplyOptions{}); err != nil {
		t.Error(err)
	}
	wrong := bytes.Replace(texts[0], []byte("hostNetwork: true"), []byte("hostNetwork: true\n      hostNetwrk: true"), 1)
	if err := c.Plane.ApplyText(t.Context(), wrong, metav1.ApplyOptions{}); err == nil {
		t.Error("the API server takes a field that it does not know")
	}
}

// installed is a node with an agent that runs as the kubelet runs it.
type installed struct {
	*rig.Cluster
	*testing.T
	node  *rig.Node
	set   daemonset.Set
	pod   daemonset.Pod
	agent *lab.Process
}

func install(c *rig.Cluster, overlay string) *installed {
	return installOn(c, c.NewNode(rig.NodeOptions{NodeOptions: lab.NodeOptions{Zone: "a"}, NoAgent: true}), overlay)
}

func installOn(c *rig.Cluster, node *rig.Node, overlay string) *installed {
	t := c.T
	i := &installed{Cluster: c, T: t, node: node}
	i.load(overlay)
	program, err := daemonset.Program()
	i.must(err)
	host, err := daemonset.Hostlike(c.Lab, i.node.Node)
	i.must(err)
	// The kubelet's environment names the ClusterIP of default/kubernetes.
	i.pod = daemonset.Pod{Program: program, Account: i.account(), Host: host, Env: []string{"KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443"}}
	return i
}

func (i *installed) must(err error) {
	i.T.Helper()
	if err != nil {
		i.T.Fatal(err)
	}
}

// load applies an overlay and reads what to run.
func (i *installed) load(overlay string) {
	i.T.Helper()
	text := rendered(i.T, overlay)
	i.must(i.Plane.ApplyText(i.T.Context(), text, metav1.ApplyOptions{}))
	var err error
	i.set, err = daemonset.Read(text)
	i.must(err)
}

// account is the directory that the kubelet mounts: the token and the CA of the ServiceAccount.
func (i *installed) account() string {
	i.T.Helper()
	path, err := i.Plane.Login(i.T.Context(), "kube-system", i.set.Spec.Template.Spec.ServiceAccountName)
	i.must(err)
	config, err := clientcmd.LoadFromFile(path)
	i.must(err)
	dir := i.T.TempDir()
	for _, cluster := range config.Clusters {
		ca, err := os.ReadFile(cluster.CertificateAuthority)
		i.must(err)
		i.must(os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o644))
	}
	for _, user := range config.AuthInfos {
		i.must(os.WriteFile(filepath.Join(dir, "token"), []byte(user.Token), 0o600))
	}
	return dir
}

func (i *installed) start() {
	i.T.Helper()
	var err error
	i.agent, err = i.set.Start(i.node.Node, i.pod)
	i.must(err)
	i.T.Cleanup(func() { _ = i.agent.Kill() })
}

func (i *installed) await(what string, wanted func(agent.Status) bool) {
	i.T.Helper()
	i.Await(what, func() bool {
		s, err := agent.ReadStatus(i.pod.Host["/run/nearlb"], daemonset.PinPath)
		return err == nil && s.PID == i.agent.PID() && wanted(s)
	})
}

func serving(s agent.Status) bool { return s.State == agent.Serving && s.Dirty == 0 }

// withoutKubeProxy: the ConfigMap has the API server's own address; once programs serve, the ClusterIP is as good.
func withoutKubeProxy(c *rig.Cluster) {
	i := install(c, "overlays/replace-kube-proxy")
	if _, err := i.set.Start(i.node.Node, i.pod); err == nil {
		i.T.Error("it starts without the ConfigMap")
	}
	_, err := c.API.CoreV1().ConfigMaps("kube-system").Create(c.T.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "nearlb-config"}, Data: map[string]string{"api-server": "https://127.0.0.1:1," + c.Plane.URL()}}, metav1.CreateOptions{})
	i.must(err)
	c.T.Cleanup(func() {
		if err := c.API.CoreV1().ConfigMaps("kube-system").Delete(context.Background(), "nearlb-config", metav1.DeleteOptions{}); err != nil {
			c.T.Error(err)
		}
	})
	config, err := c.API.CoreV1().ConfigMaps("kube-system").Get(c.T.Context(), "nearlb-config", metav1.GetOptions{})
	i.must(err)
	i.pod.Config = config.Data
	i.start()
	i.await("serving", serving)
	client, server := c.Client(i.node.Number, "client"), c.Server("web", "one", i.node.Number)
	web := c.Service("web", nil)
	web.AwaitServers(client, server)

	i.must(i.agent.Stop())
	i.load("base")
	i.pod.Config = nil
	i.start()
	i.await("serving by way of its own programs", func(s agent.Status) bool { return serving(s) && s.Source == "kubernetes" })
	other := c.Server("web", "two", i.node.Number)
	web.AwaitServers(client, server, other)
	i.finish()
}

// finish takes the programs out, so that the cluster judges no tables that are not there.
func (i *installed) finish() {
	i.T.Helper()
	i.must(i.agent.Stop())
	out, err := i.set.Exec(i.node.Node, i.pod, "cleanup")
	if err != nil {
		i.T.Errorf("cleanup: %v\n%s", err, out)
	}
}

// besideKubeProxy: each serves its own Services, on ports of its own.
func besideKubeProxy(c *rig.Cluster) {
	i := install(c, "overlays/trial")
	proxy := i.kubeProxy()
	client, server := c.Client(i.node.Number, "client"), c.Server("web", "one", i.node.Number)
	theirs := c.Service("web", nil)
	theirs.AwaitServers(client, server)
	i.start() // by the ClusterIP, which kube-proxy serves
	i.await("serving", func(s agent.Status) bool {
		return serving(s) && s.Listen["health"] == "127.0.0.1:10266" && s.Listen["metrics"] == "127.0.0.1:10267"
	})
	ours := c.Service("ours", func(s *corev1.Service) {
		s.Spec.Selector = map[string]string{"app": "web"}
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "nearlb"}
	})
	ours.AwaitServers(client, server)
	theirs.AwaitServers(client, server)

	out, err := i.set.Exec(i.node.Node, i.pod, "services")
	if err != nil || !strings.Contains(out, c.Namespace+"/ours:tcp") || strings.Contains(out, c.Namespace+"/web:tcp") || strings.Contains(out, "default/kubernetes") {
		i.T.Errorf("it serves others' Services, or not its own: %v\n%s", err, out)
	}
	// An address that no Service has is kube-proxy's to judge.
	ctx, cancel := context.WithTimeout(i.T.Context(), 2*time.Second)
	defer cancel()
	if _, err := client.Ask(ctx, "tcp", netip.MustParseAddrPort("10.96.77.77:80"), lab.DialOptions{}); err == nil {
		i.T.Error("somebody answers at an unallocated address")
	}
	if out, err = i.set.Exec(i.node.Node, i.pod, "verdicts"); err != nil || strings.Contains(out, "drop") {
		i.T.Errorf("it drops what is others': %v\n%s", err, out)
	}
	for _, url := range []string{"http://127.0.0.1:10256/healthz", "http://127.0.0.1:10266/healthz"} {
		if code := i.get(url); code != 200 {
			i.T.Errorf("%s answers %d", url, code)
		}
	}
	i.finish()
	theirs.AwaitServers(client, server) // and is as before
	i.must(proxy.Kill())
}

// kubeProxy runs the real one on the node.
func (i *installed) kubeProxy() *lab.Process {
	i.T.Helper()
	program, err := control.Program()
	i.must(err)
	kubeconfig, err := i.Plane.Certify("system:kube-proxy")
	i.must(err)
	p, err := i.node.Start("kube-proxy", []string{program, "kube-proxy", "--kubeconfig=" + kubeconfig, "--hostname-override=" + i.node.Name, "--proxy-mode=nftables",
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"})
	i.must(err)
	i.T.Cleanup(func() { _ = p.Kill() })
	return p
}

// get asks a server on the node's own loopback address.
func (i *installed) get(url string) int {
	i.T.Helper()
	var code int
	i.must(i.node.Do(func() error {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return i.node.Dial(ctx, network, netip.MustParseAddrPort(address), lab.DialOptions{})
		}}}
		answer, err := client.Get(url)
		if err == nil {
			code = answer.StatusCode
			err = answer.Body.Close()
		}
		return err
	}))
	return code
}
