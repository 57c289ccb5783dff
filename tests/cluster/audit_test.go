// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// What is judged at the end of every cluster would not be passed by an agent that lacks a permission, nor by one that reads v1
// Endpoints, nor if the audit saw nothing.
func TestTheAuditSeesWhatAnAgentMayNotDo(t *testing.T) {
	c := rig.Shared(t)
	c.AwaitServing() // so that the agents have asked for something, if this is the only test that runs
	account := func(name string) (*kubernetes.Clientset, string) {
		o := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := c.API.CoreV1().ServiceAccounts(c.Namespace).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		file, err := c.Plane.Login(t.Context(), c.Namespace, name)
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.BuildConfigFromFlags("", file)
		if err != nil {
			t.Fatal(err)
		}
		config.Dial = c.Plane.Config().Dial
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return client, "system:serviceaccount:" + c.Namespace + ":" + name
	}
	complains := func(user, of string) {
		t.Helper()
		if err := c.Plane.CheckAudit(user); err == nil || !strings.Contains(err.Error(), of) {
			t.Errorf("the audit of %s says %v, want %q", user, err, of)
		}
	}
	client, user := account("nobody")
	complains(user, "no request")
	if _, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("list as nobody: %v, want a refusal", err)
	}
	complains(user, "refused")

	client, user = account("reader")
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: c.Namespace},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"endpoints"}, Verbs: []string{"list"}}},
	}
	if _, err := c.API.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: c.Namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: c.Namespace},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: c.Namespace, Name: "reader"}},
	}
	if _, err := c.API.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Await("the reader may read", func() bool {
		_, err := client.CoreV1().Endpoints("").List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
	complains(user, "a request for Endpoints")
}
