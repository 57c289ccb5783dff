// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// servers are API servers, by host, each as well as the test says. They are asked without a network, in the time of a bubble.
type servers struct {
	mu    sync.Mutex
	ill   map[string]error         // answers nothing else
	mute  map[string]bool          // accepts, and says nothing
	slow  map[string]time.Duration // takes so long for a list
	code  map[string]int           // the status of its answers; 0: 200
	etcd  map[string]int           // the status of its answers to all but /readyz; 0: that of code
	asked []string                 // hosts of requests other than for /readyz
}

func (s *servers) RoundTrip(r *http.Request) (*http.Response, error) {
	host, list := r.URL.Host, r.URL.Path != "/readyz"
	s.mu.Lock()
	ill, mute, slow, code := s.ill[host], s.mute[host], time.Duration(0), cmp.Or(s.code[host], http.StatusOK)
	if list {
		s.asked = append(s.asked, host)
		slow, code = s.slow[host], cmp.Or(s.etcd[host], code)
	}
	s.mu.Unlock()
	switch {
	case ill != nil:
		return nil, ill
	case mute:
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-time.After(slow):
	}
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Body: io.NopCloser(strings.NewReader(host)), Request: r}, nil
}

func (s *servers) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func withServers(t *testing.T, test func(s *servers, r *recorder, ask func() string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &servers{ill: map[string]error{}, mute: map[string]bool{}, slow: map[string]time.Duration{}, code: map[string]int{}, etcd: map[string]int{}}
		r := newRecorder()
		f := &failover{next: s, log: slog.New(r)}
		for _, host := range []string{"a", "b", "c"} {
			f.servers = append(f.servers, &url.URL{Scheme: "https", Host: host})
		}
		test(s, r, func() string {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x/api/v1/services", nil)
			must(t, err)
			response, err := f.RoundTrip(request)
			if err != nil {
				return err.Error()
			}
			defer response.Body.Close()
			host, err := io.ReadAll(response.Body)
			must(t, err)
			return string(host)
		})
		s.set(func() { clear(s.ill); clear(s.mute); clear(s.code); clear(s.etcd) })
		time.Sleep(time.Hour) // it goes back, and looks no more
	})
}

func TestAServerThatAcceptsAndSaysNothingIsLeftInSeconds(t *testing.T) {
	withServers(t, func(s *servers, r *recorder, ask func() string) {
		s.set(func() { s.mute["a"], s.mute["b"] = true, true })
		began := time.Now()
		same(t, "asked", ask(), "c")
		if took := time.Since(began); took > 4*answerTime {
			t.Errorf("it took %v, want twice the time of an answer for each", took)
		}
		same(t, "said", r.logged("asking another API server server=c left=a error=it accepts requests and answers none"), 1)
		same(t, "asked again", ask(), "c")
		s.set(func() { s.mute["c"] = true })
		same(t, "all silent", ask(), errSilent.Error())
	})
}

func TestAServerIsLeftForSayingThatItCannotServeAndForNoOtherError(t *testing.T) {
	for code, want := range map[int]string{
		http.StatusBadGateway: "b", http.StatusServiceUnavailable: "b", http.StatusGatewayTimeout: "b",
		http.StatusInternalServerError: "a", http.StatusNotImplemented: "a", http.StatusTooManyRequests: "a", http.StatusForbidden: "a",
	} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			withServers(t, func(s *servers, _ *recorder, ask func() string) {
				s.set(func() { s.etcd["a"] = code })
				same(t, "asked", ask(), "a") // who asked is told what it said
				same(t, "asked again", ask(), want)
			})
		})
	}
}

// Each API server of a stacked control plane has an etcd of its own.
func TestAServerThatAnswers500AndIsNotReadyIsLeft(t *testing.T) {
	withServers(t, func(s *servers, r *recorder, ask func() string) {
		s.set(func() { s.code["a"] = http.StatusInternalServerError })
		same(t, "asked", ask(), "a")
		same(t, "asked again", ask(), "b")
		same(t, "said", r.logged("asking another API server server=b left=a error=Internal Server Error"), 1)
	})
}

// A long list takes a while; the server says meanwhile that it is ready.
func TestAServerThatIsReadyIsGivenTimeForALongList(t *testing.T) {
	withServers(t, func(s *servers, r *recorder, ask func() string) {
		s.set(func() { s.slow["a"] = 20 * answerTime })
		same(t, "asked", ask(), "a")
		same(t, "said", r.logged("asking another"), 0)
		s.set(func() { time.AfterFunc(5*answerTime, func() { s.set(func() { s.mute["a"] = true }) }) })
		same(t, "one that falls silent meanwhile", ask(), "b")
	})
}

func TestTheFirstServerIsAskedAgainOnceItIsWell(t *testing.T) {
	withServers(t, func(s *servers, r *recorder, ask func() string) {
		s.set(func() { s.ill["a"] = errors.New("connection refused") })
		same(t, "asked", ask(), "b")
		time.Sleep(time.Hour)
		same(t, "asked while it is ill", ask(), "b")
		s.set(func() { delete(s.ill, "a") })
		time.Sleep(wellFor / 2)
		same(t, "asked at once", ask(), "b")
		time.Sleep(wellFor + 2*probeEvery)
		same(t, "asked when it has been well for some time", ask(), "a")
		same(t, "said", r.logged("asking another API server server=a left=b error=the first one is ready again"), 1)
	})
}

// A server that comes and goes is asked ever more seldom.
func TestAServerThatComesAndGoesIsNotReturnedToEachTime(t *testing.T) {
	withServers(t, func(s *servers, r *recorder, ask func() string) {
		for range 150 { // an hour, in which it is ready for seconds at a time
			s.set(func() { s.ill["a"] = errors.New("connection refused") })
			ask()
			time.Sleep(13 * time.Second)
			s.set(func() { delete(s.ill, "a") })
			ask()
			time.Sleep(12 * time.Second)
		}
		same(t, "changes while it is ready for seconds", r.logged("left=b"), 0)
		for range 48 { // four hours, in which it says that it is ready, and fails soon after it is asked again
			time.Sleep(5 * time.Minute)
			ask()
			s.set(func() { s.ill["a"] = errors.New("connection refused") })
			ask()
			s.set(func() { delete(s.ill, "a") })
		}
		if n := r.logged("left=b"); n < 1 || n > 30 {
			t.Errorf("it was returned to %d times in four hours", n)
		}
	})
}
