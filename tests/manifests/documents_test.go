// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// objects decodes strictly, by kind and name: what no type knows is an error.
func objects(t *testing.T, rendered []byte) map[string]runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	all := map[string]runtime.Object{}
	for reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(rendered))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		object, kind, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		all[kind.Kind+" "+object.(v1.Object).GetName()] = object
	}
}

// plain leaves out what the two ways to install differ in for no reason of ours: Helm's labels, the order of the environment.
func plain(all map[string]runtime.Object) map[string]runtime.Object {
	for _, object := range all {
		o := object.(v1.Object)
		labels := o.GetLabels()
		for _, own := range []string{"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
			delete(labels, own)
		}
		set, ok := object.(*appsv1.DaemonSet)
		if !ok {
			o.SetLabels(nil)
			continue
		}
		env := set.Spec.Template.Spec.Containers[0].Env
		slices.SortFunc(env, func(a, b corev1.EnvVar) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	}
	return all
}

func kustomized(t *testing.T, dir string) map[string]runtime.Object {
	t.Helper()
	text, err := Kustomize(dir)
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, text)
}

func charted(t *testing.T, values map[string]any) map[string]runtime.Object {
	t.Helper()
	text, _, err := Chart(values)
	if err != nil {
		t.Fatalf("%v: %v", values, err)
	}
	return objects(t, text)
}

func daemonSet(t *testing.T, all map[string]runtime.Object) (*appsv1.DaemonSet, *corev1.Container) {
	t.Helper()
	set, ok := all["DaemonSet nearlb"].(*appsv1.DaemonSet)
	if !ok || len(set.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("no DaemonSet of one container among %v", slices.Sorted(maps.Keys(all)))
	}
	return set, &set.Spec.Template.Spec.Containers[0]
}
