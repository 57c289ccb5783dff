// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/nearlb/nearlb/pkg/watch"
)

// source opens where the objects come from, and names it for people.
func source(o Options) (watch.Source, string, error) {
	switch {
	case o.Source != nil:
		return o.Source, "given", nil
	case o.Manifests != "":
		return watch.Manifests(o.Manifests, o.nodeConfig(), o.Log), "manifests " + o.Manifests, nil
	}
	config, err := clientConfig(o)
	if err != nil {
		return nil, "", err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, "", fmt.Errorf("make Kubernetes client: %w", err)
	}
	klog.SetLogger(watch.ClientLogger(o.Log)) // client-go has no other place for its log
	return watch.Kubernetes(client, o.nodeConfig(), o.Log), "kubernetes", nil
}

func clientConfig(o Options) (*rest.Config, error) {
	config, err := loginFrom(o.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.UserAgent = "nearlb/" + o.Version
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return config, nil
}

func loginFrom(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("log in to the API server from inside the cluster: %w (outside, name --kubeconfig or --manifests)", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read --kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}
