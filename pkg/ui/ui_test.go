// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// told is a Source that repeats what it was asked.
type told struct{ err error }

func (s told) Map(_ context.Context, filter string) (any, error) {
	return map[string]string{"filter": filter}, s.err
}

func (s told) Why(_ context.Context, service, client string) (any, error) {
	return map[string]string{"service": service, "client": client}, s.err
}

func ask(t *testing.T, source Source, method, target string, headers ...string) (*http.Response, string) {
	t.Helper()
	request := httptest.NewRequest(method, target, nil)
	request.Host = "localhost:8249"
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			request.Host = headers[i+1]
		}
		request.Header.Set(headers[i], headers[i+1])
	}
	recorder := httptest.NewRecorder()
	Handler(source).ServeHTTP(recorder, request)
	answer := recorder.Result()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(text)
}

func TestThePageAllowsItsOwnScriptAlone(t *testing.T) {
	answer, text := ask(t, told{}, "GET", "/")
	policy := answer.Header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("policy %q has no %s", policy, part)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Count(policy, "sha256-") != 2 {
		t.Errorf("policy %q", policy)
	}
	for header, want := range map[string]string{"Content-Type": "text/html; charset=utf-8", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"} {
		if got := answer.Header.Get(header); got != want {
			t.Errorf("%s: %q, want %q", header, got, want)
		}
	}
	for _, way := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", " style=", " onclick="} {
		if strings.Contains(text, way) {
			t.Errorf("the page has %q: data could become markup, or the policy forbids it", way)
		}
	}
	for _, asset := range []string{"<script src", "<link rel=\"stylesheet", "@import", "url(", "https://"} {
		if strings.Contains(text, asset) {
			t.Errorf("the page has %q: an asset from elsewhere", asset)
		}
	}
}

func TestThePageAnswersThisHostAlone(t *testing.T) {
	for host, want := range map[string]int{
		"localhost": 200, "localhost:9000": 200, "LOCALHOST:1": 200, "127.0.0.1:8249": 200, "127.8.8.8": 200, "[::1]:8249": 200, "[::1]": 200, "[::ffff:127.0.0.1]:1": 200,
		"": 403, "evil.example": 403, "evil.example:8249": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example": 403, "192.0.2.1:8249": 403, "[2001:db8::1]:8249": 403, "0.0.0.0:8249": 403,
	} {
		for _, path := range []string{"/", "/map.json"} {
			if answer, _ := ask(t, told{}, "GET", path, "Host", host); answer.StatusCode != want {
				t.Errorf("Host %q, %s: %d, want %d", host, path, answer.StatusCode, want)
			}
		}
	}
}

func TestThePageIsReadOnly(t *testing.T) {
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"} {
		for _, path := range []string{"/", "/map.json", "/why.json?service=a/b"} {
			if answer, _ := ask(t, told{}, method, path); answer.StatusCode != http.StatusMethodNotAllowed || answer.Header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: %d, allowed %q", method, path, answer.StatusCode, answer.Header.Get("Allow"))
			}
		}
	}
	if answer, _ := ask(t, told{}, "HEAD", "/map.json"); answer.StatusCode != http.StatusOK {
		t.Errorf("HEAD: %d", answer.StatusCode)
	}
	if answer, _ := ask(t, told{}, "GET", "/elsewhere"); answer.StatusCode != http.StatusNotFound {
		t.Errorf("another path: %d", answer.StatusCode)
	}
	if answer, _ := ask(t, told{}, "GET", "/map.json?filter="+strings.Repeat("x", 4000)); answer.StatusCode != http.StatusRequestURITooLong {
		t.Errorf("a long question: %d", answer.StatusCode)
	}
	if answer, text := ask(t, told{}, "GET", "/map.json?filter="+url.QueryEscape(strings.Repeat("\u8377", 200))); answer.StatusCode != http.StatusOK {
		t.Errorf("as many letters as the page's filter has: %d %s", answer.StatusCode, text)
	}
}

// The page reads what it is told as JSON, whatever it is.
func TestEachRefusalIsADocument(t *testing.T) {
	for why, question := range map[string][]string{
		"ask by localhost or a loopback address": {"GET", "/map.json", "Host", "evil.example"},
		"this page is read only":                 {"POST", "/map.json"},
		"the question is too long":               {"GET", "/map.json?filter=" + strings.Repeat("x", 4000)},
		"another site asks":                      {"GET", "/map.json", "Sec-Fetch-Site", "cross-site"},
	} {
		answer, text := ask(t, told{}, question[0], question[1], question[2:]...)
		var doc map[string]string
		if err := json.Unmarshal([]byte(text), &doc); err != nil || doc["error"] != why || answer.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %s %q: %v", why, answer.Header.Get("Content-Type"), text, err)
		}
	}
}

func TestDocumentsAreForThePageAlone(t *testing.T) {
	for site, want := range map[string]int{"same-origin": 200, "none": 200, "cross-site": 403, "same-site": 403} {
		if answer, _ := ask(t, told{}, "GET", "/why.json?service=a/b", "Sec-Fetch-Site", site); answer.StatusCode != want {
			t.Errorf("from %s: %d, want %d", site, answer.StatusCode, want)
		}
	}
}

// Whatever a name is, a document has it as a text, which is no markup even where a browser took the document for a page.
func TestNamesAreTextsInDocuments(t *testing.T) {
	answer, text := ask(t, told{}, "GET", "/why.json?service=%3Cimg+src%3Dx%3E&client=%22%5C%27")
	var doc map[string]string
	if err := json.Unmarshal([]byte(text), &doc); err != nil || doc["service"] != "<img src=x>" || doc["client"] != `"\'` {
		t.Errorf("%s: %v", text, err)
	}
	if strings.ContainsAny(text, "<>") || answer.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s: %s", answer.Header.Get("Content-Type"), text)
	}
}

func TestWhatCannotBeReadIsSaid(t *testing.T) {
	answer, text := ask(t, told{errors.New("no agent ever ran <here>")}, "GET", "/map.json")
	var doc map[string]string
	if err := json.Unmarshal([]byte(text), &doc); err != nil || doc["error"] != "no agent ever ran <here>" || answer.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%d %s: %v", answer.StatusCode, text, err)
	}
}
