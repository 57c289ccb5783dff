// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// TestWhatAnAgentCosts measures what the DaemonSet's resource requests are made of. It judges nothing, so it runs only if asked:
//
//	NEARLB_MEASURE=1000,10000 go test -run TestWhatAnAgentCosts -v .
func TestWhatAnAgentCosts(t *testing.T) {
	sizes := os.Getenv("NEARLB_MEASURE")
	if sizes == "" {
		t.Skip("a measurement: NEARLB_MEASURE=1000,10000 has it run")
	}
	c := rig.New(t, rig.Options{})
	i := install(c, "base")
	i.pod.Config = map[string]string{"api-server": c.Plane.URL()}
	have := 0
	for size := range strings.SplitSeq(sizes, ",") {
		services, err := strconv.Atoi(size)
		i.must(err)
		i.fill(have, services)
		have = services
		i.start()
		began := time.Now()
		i.await("serving", func(s agent.Status) bool { return serving(s) && s.Services >= services && !s.LastAudit.IsZero() })
		took, first := time.Since(began), i.cpu()
		const quiet, churn = 30 * time.Second, 30
		time.Sleep(quiet)
		idle := i.cpu() - first
		before := i.cpu()
		for k := range churn { // ten endpoints change in a second
			for j := range 10 {
				i.touch(k*10+j, k)
			}
			time.Sleep(time.Second)
		}
		busy := i.cpu() - before
		t.Logf("%d Services of 3 endpoints: serving after %.1f s and %.1f s of CPU; quiet %.1f m CPU; 10 changes a second %.1f m CPU; memory %s",
			services, took.Seconds(), first, 1000*idle/quiet.Seconds(), 1000*busy/churn, i.memory())
		i.must(i.agent.Stop())
	}
	i.finish()
}

// fill makes Services with slices by hand, so that no controller is measured.
func (i *installed) fill(from, to int) {
	group, ctx := errgroup.WithContext(i.T.Context())
	group.SetLimit(20)
	for k := from; k < to; k++ {
		group.Go(func() error {
			name := fmt.Sprintf("s%d", k)
			_, err := i.API.CoreV1().Services(i.Namespace).Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}, metav1.CreateOptions{})
			if err == nil {
				_, err = i.API.DiscoveryV1().EndpointSlices(i.Namespace).Create(ctx, endpoints(name, k, 0), metav1.CreateOptions{})
			}
			return err
		})
	}
	i.must(group.Wait())
}

func endpoints(service string, number, version int) *discoveryv1.EndpointSlice {
	name, port, protocol := "http", int32(8080), corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	for e := range 3 {
		ready, zone, node := e != version%3, "a", fmt.Sprintf("n%d", e)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 128+e, number>>8&255, number&255)},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}, NodeName: &node, Zone: &zone})
	}
	return slice
}

func (i *installed) touch(number, version int) {
	name := fmt.Sprintf("s%d", number%500)
	_, err := i.API.DiscoveryV1().EndpointSlices(i.Namespace).Update(context.Background(), endpoints(name, number%500, version+1), metav1.UpdateOptions{})
	i.must(err)
}

// cpu is in seconds.
func (i *installed) cpu() float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", i.agent.PID()))
	i.must(err)
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	const ticks = 100
	return (user + system) / ticks
}

// memory is the process's own, and that of its tables, which the kernel charges to the container that made them.
func (i *installed) memory() string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", i.agent.PID()))
	i.must(err)
	out := ""
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "RssAnon") || strings.HasPrefix(line, "RssFile") || strings.HasPrefix(line, "RssShmem") || strings.HasPrefix(line, "VmHWM") {
			out += strings.Join(strings.Fields(line), " ") + ", "
		}
	}
	descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", i.agent.PID()))
	i.must(err)
	tables, seen := 0, map[string]bool{}
	for _, path := range descriptors {
		text, _ := os.ReadFile(path)
		values := map[string]string{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			values[key] = strings.TrimSpace(value)
		}
		if id := values["map_id"]; id != "" && !seen[id] {
			seen[id] = true
			size, _ := strconv.Atoi(values["memlock"])
			tables += size
		}
	}
	return fmt.Sprintf("%stables %d MiB", out, tables>>20)
}
