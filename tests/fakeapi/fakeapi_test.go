// SPDX-License-Identifier: Apache-2.0

package fakeapi_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"

	"github.com/nearlb/nearlb/pkg/watch/clientset"
	"github.com/nearlb/nearlb/pkg/watch/kube"
	"github.com/nearlb/nearlb/tests/fakeapi"
)

func start(t *testing.T, o fakeapi.Options) (*fakeapi.Server, *fakeapi.Running) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	api := fakeapi.New(o)
	running := api.Start(listener)
	t.Cleanup(running.Close)
	return api, running
}

func client(t *testing.T, r *fakeapi.Running, contentType string) kube.Client {
	t.Helper()
	config := r.Config()
	config.ContentType, config.AcceptContentTypes = contentType, contentType
	c, err := clientset.For(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// core asks for objects of the core group.
func core(t *testing.T, r *fakeapi.Running) rest.Interface {
	t.Helper()
	config := r.Config()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(fakeapi.Types).WithoutConversion()
	c, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func service(name, ip string, labels map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
}

var encodings = []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf}

func names(list *corev1.ServiceList) (out []string) {
	for _, s := range list.Items {
		out = append(out, s.Name+"="+s.Spec.ClusterIP)
	}
	return out
}

func TestListsHaveWhatIsSelected(t *testing.T) {
	api, running := start(t, fakeapi.Options{})
	api.Put(service("b", "10.96.0.2", nil), service("a", "10.96.0.1", nil), service("c", "None", nil), service("d", "10.96.0.4", map[string]string{"proxy": "other"}))
	for _, encoding := range encodings {
		list, err := client(t, running, encoding).Services("").List(t.Context(), metav1.ListOptions{LabelSelector: "!proxy", FieldSelector: "spec.clusterIP!=None"})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := names(list), []string{"a=10.96.0.1", "b=10.96.0.2"}; !slices.Equal(got, want) {
			t.Errorf("%s: listed %v, want %v", encoding, got, want)
		}
		if want := fmt.Sprint(api.Version()); list.ResourceVersion != want {
			t.Errorf("%s: version %s, want %s", encoding, list.ResourceVersion, want)
		}
	}
}

func TestListsComeInPagesOfOneMoment(t *testing.T) {
	api, running := start(t, fakeapi.Options{})
	for i := range 25 {
		api.Put(service(fmt.Sprintf("s%02d", i), "10.96.0.1", nil))
	}
	services := client(t, running, runtime.ContentTypeProtobuf).Services("default")
	read := 0
	page := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		list, err := services.List(ctx, options)
		if read == 0 {
			api.Delete(service("s24", "", nil)) // the list goes on as it began
		}
		read++
		return list, err
	})
	page.PageSize = 10
	all, _, err := page.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if items := meta.LenList(all); items != 25 || read != 3 {
		t.Errorf("%d objects in %d pages, want 25 in 3", items, read)
	}
	first, err := services.List(t.Context(), metav1.ListOptions{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	if first.RemainingItemCount == nil || *first.RemainingItemCount != 14 {
		t.Errorf("remaining %v, want 14", first.RemainingItemCount)
	}
	api.Compact()
	if _, err := services.List(t.Context(), metav1.ListOptions{Limit: 10, Continue: first.Continue}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a list that goes on after its version was forgotten: %v, want 410", err)
	}
}

// next is the next event that is no bookmark.
func next(t *testing.T, w apiwatch.Interface) apiwatch.Event {
	t.Helper()
	for {
		select {
		case e, open := <-w.ResultChan():
			if !open {
				t.Fatal("the watch has ended")
			}
			if e.Type != apiwatch.Bookmark {
				return e
			}
		case <-time.After(30 * time.Second):
			t.Fatal("no event")
		}
	}
}

func TestWatchesTellOfWhatComesToBeSelectedAndCeasesToBe(t *testing.T) {
	for _, encoding := range encodings {
		api, running := start(t, fakeapi.Options{})
		from := fmt.Sprint(api.Version())
		w, err := client(t, running, encoding).Services("").Watch(t.Context(), metav1.ListOptions{LabelSelector: "!proxy", ResourceVersion: from})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		api.Put(service("other", "10.96.0.9", map[string]string{"proxy": "other"}))
		api.Put(service("a", "10.96.0.1", nil))
		api.Put(service("a", "10.96.0.2", nil))
		api.Put(service("a", "10.96.0.2", map[string]string{"proxy": "other"}))
		api.Put(service("a", "10.96.0.3", nil))
		api.Delete(service("a", "", nil))
		for i, want := range []string{"ADDED 10.96.0.1", "MODIFIED 10.96.0.2", "DELETED 10.96.0.2", "ADDED 10.96.0.3", "DELETED 10.96.0.3"} {
			e := next(t, w)
			s := e.Object.(*corev1.Service)
			if got := fmt.Sprintf("%s %s", e.Type, s.Spec.ClusterIP); got != want {
				t.Errorf("%s: event %d: %s, want %s", encoding, i, got, want)
			}
			if want := fmt.Sprint(api.Version()); i == 4 && s.ResourceVersion != want {
				t.Errorf("%s: deleted at version %s, want %s", encoding, s.ResourceVersion, want)
			}
		}
	}
}

func TestAVersionThatIsForgottenIsGone(t *testing.T) {
	api, running := start(t, fakeapi.Options{})
	from := fmt.Sprint(api.Version())
	api.Put(service("a", "10.96.0.1", nil))
	api.Compact()
	for _, encoding := range encodings {
		w, err := client(t, running, encoding).Services("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: from})
		if err != nil {
			t.Fatal(err)
		}
		if e := next(t, w); e.Type != apiwatch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
			t.Errorf("%s: %v, want 410", encoding, e)
		}
		w.Stop()
	}
}

// Reflectors of client-go follow through streamed lists and plain ones, broken watches and forgotten versions.
func TestInformersFollow(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain lists: %t", plain), func(t *testing.T) {
			api, running := start(t, fakeapi.Options{NoStreams: plain})
			api.Put(service("a", "10.96.0.1", nil), service("b", "10.96.0.2", nil))
			services := client(t, running, runtime.ContentTypeProtobuf).Services("")
			informer := cache.NewSharedInformer(&cache.ListWatch{
				ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
					return services.List(ctx, options)
				},
				WatchFuncWithContext: services.Watch,
			}, &corev1.Service{}, 0)
			ctx, cancel := context.WithCancel(t.Context())
			var ended sync.WaitGroup
			defer ended.Wait()
			defer cancel()
			ended.Go(func() { informer.RunWithContext(ctx) })
			if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
				t.Fatal("never synced")
			}
			await := func(name, ip string) {
				t.Helper()
				for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
					s, has, err := informer.GetStore().GetByKey("default/" + name)
					if has && s.(*corev1.Service).Spec.ClusterIP == ip || ip == "" && !has && err == nil {
						return
					}
					if time.Now().After(deadline) {
						t.Fatalf("%s is not %q: %v, %v", name, ip, s, err)
					}
				}
			}
			await("a", "10.96.0.1")
			api.Put(service("a", "10.96.0.3", nil))
			await("a", "10.96.0.3")
			api.BreakWatches()
			api.Delete(service("b", "", nil))
			await("b", "")
			api.Put(service("c", "10.96.0.4", nil))
			api.Compact()
			api.BreakWatches()
			api.Put(service("c", "10.96.0.5", nil))
			await("c", "10.96.0.5")
		})
	}
}

func TestClientsOfMetadataGetNothingElse(t *testing.T) {
	api, running := start(t, fakeapi.Options{})
	api.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}}})
	c, err := metadata.NewForConfig(running.Config())
	if err != nil {
		t.Fatal(err)
	}
	nodes := c.Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
	list, err := nodes.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].Labels["zone"] != "a" {
		t.Errorf("listed %v", list.Items)
	}
	w, err := nodes.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	api.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "b"}}})
	if e := next(t, w); e.Object.(*metav1.PartialObjectMetadata).Labels["zone"] != "b" {
		t.Errorf("event %v", e)
	}
}

func TestBookmarksComeBetweenEvents(t *testing.T) {
	api, running := start(t, fakeapi.Options{BookmarksEvery: 10 * time.Millisecond})
	for _, encoding := range encodings {
		w, err := client(t, running, encoding).Services("").Watch(t.Context(), metav1.ListOptions{
			ResourceVersion: fmt.Sprint(api.Version()), AllowWatchBookmarks: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		e, open := <-w.ResultChan()
		if !open || e.Type != apiwatch.Bookmark || e.Object.(*corev1.Service).ResourceVersion != fmt.Sprint(api.Version()) {
			t.Errorf("%s: %v, want a bookmark of version %d", encoding, e, api.Version())
		}
		w.Stop()
	}
}

func TestEventsAreTakenAndWhatIsNotServedIsNot(t *testing.T) {
	api, running := start(t, fakeapi.Options{Without: []string{"servicecidrs"}})
	c := client(t, running, runtime.ContentTypeProtobuf)
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e"}, Reason: "Test"}
	var made corev1.Event
	if err := core(t, running).Post().Namespace("default").Resource("events").Body(event).Do(t.Context()).Into(&made); err != nil || made.Reason != "Test" || api.Events() != 1 {
		t.Errorf("create Event: %v, %v, %d were counted", made, err, api.Events())
	}
	if _, err := c.ServiceCIDRs().List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("list ServiceCIDRs: %v, want 404", err)
	}
	if _, err := c.Services("default").Get(t.Context(), "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get a Service that does not exist: %v, want 404", err)
	}
}
