// SPDX-License-Identifier: Apache-2.0

// Package ui looks at the page of `nearlb ui` in a browser: make ui-test.
package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/nearlb/nearlb/pkg/ui"
)

// source has the documents of pkg/cli's tests, and can be changed.
type source struct {
	mu     sync.Mutex
	mapped map[string]any
	why    map[string]any
	fails  bool
	asked  []string            // Services, and clients
	hold   func(filter string) // returns when the map is to be told; nil: at once
}

func document(t *testing.T, name string) (doc map[string]any) {
	t.Helper()
	text, err := os.ReadFile("../../pkg/cli/testdata/ui/" + name)
	if err == nil {
		err = json.Unmarshal(text, &doc)
	}
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func (s *source) Map(_ context.Context, filter string) (any, error) {
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		hold(filter)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails {
		return nil, errors.New("no tables <b>here</b>")
	}
	nodes := []any{}
	for _, n := range s.mapped["nodes"].([]any) {
		node := map[string]any{}
		for key, value := range n.(map[string]any) {
			node[key] = value
		}
		all, is := node["services"].([]any)
		if !is { // a node that cannot be asked
			nodes = append(nodes, node)
			continue
		}
		kept := []any{}
		for _, row := range all {
			if strings.Contains(row.(map[string]any)["service"].(string), filter) {
				kept = append(kept, row)
			}
		}
		node["services"] = kept
		nodes = append(nodes, node)
	}
	return map[string]any{"nodes": nodes}, nil
}

func (s *source) Why(_ context.Context, service, client string) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, service+" "+client)
	return s.why, nil
}

// of changes a node's document.
func (s *source) of(node int, change func(map[string]any)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.mapped["nodes"].([]any)[node].(map[string]any))
}

func page(t *testing.T) (*browser, *source, string) {
	t.Helper()
	if os.Getenv("NEARLB_UI") == "" {
		t.Skip("NEARLB_UI is not set: make ui-test looks at the page in a browser")
	}
	s := &source{mapped: document(t, "map.json"), why: document(t, "why.json")}
	server := httptest.NewServer(ui.Handler(s))
	t.Cleanup(server.Close)
	return start(t), s, server.URL + "/"
}

// What is wider than the window makes people scroll sideways; a card that is cut hides a name.
const tooWide = `document.documentElement.scrollWidth > innerWidth ? document.documentElement.scrollWidth + " of " + innerWidth : [...document.querySelectorAll("button, h1, h2, .rate, .heads > *, .legend li, dialog[open] p, dialog[open] li")].filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0).map(e => e.textContent).join("; ")`

// The least ratio of luminances between texts and what is behind them, and where (WCAG 2.2, 1.4.3: 4.5).
const contrast = `(() => {
	const parts = c => (c.match(/[\d.]+/g) || []).map(Number);
	const light = c => { const [r, g, b] = parts(c).map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (parts(c).length < 4 || parts(c)[3] > 0) return c; } return "rgb(255, 255, 255)"; };
	let least = [99, ""];
	for (const e of document.querySelectorAll("body *")) {
		if (!e.offsetParent || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
		const a = light(getComputedStyle(e).color), b = light(behind(e)), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < least[0]) least = [ratio, e.tagName + "." + e.className + " " + e.textContent.slice(0, 40)];
	}
	return least;
})()`

func TestThePageFitsEachWindowInLightAndDark(t *testing.T) {
	b, _, url := page(t)
	for _, width := range []int{360, 800, 1600} {
		for _, scheme := range []string{"light", "dark"} {
			b.open(url, width, 900, scheme)
			if wide := b.value(tooWide); wide != "" {
				t.Errorf("%d: wider than its place: %v", width, wide)
			}
			if least := b.value(contrast).([]any); least[0].(float64) < 4.5 {
				t.Errorf("%d, %s: contrast %v", width, scheme, least)
			}
			if shapes := b.value(`document.querySelectorAll("#arrows path").length`).(float64); shapes < 20 {
				t.Errorf("%d: %v shapes of arrows", width, shapes)
			}
			b.picture(fmt.Sprintf("page-%d-%s.png", width, scheme), true)
			b.value(`document.querySelector("[data-service='shop/cart']").click()`)
			b.until(`document.querySelector("#answer table")`)
			if wide := b.value(tooWide); wide != "" {
				t.Errorf("%d, why: wider than its place: %v", width, wide)
			}
			b.picture(fmt.Sprintf("why-%d-%s.png", width, scheme), false)
			b.quiet()
		}
	}
}

func TestNamesAreShownAsTexts(t *testing.T) {
	b, _, url := page(t)
	b.open(url, 1600, 900, "light")
	const name = `<img src=x onerror=document.title="owned">`
	if shown := b.value(`document.querySelector("#rows").textContent`).(string); !strings.Contains(shown, name+"/"+name) {
		t.Errorf("the map does not show the name: %s", shown)
	}
	b.value(`[...document.querySelectorAll(".service")].find(c => c.dataset.service.includes("<img")).click()`)
	b.until(`document.querySelector("#answer table")`)
	if shown := b.value(`document.querySelector("#answer").textContent`).(string); !strings.Contains(shown, name) {
		t.Errorf("the sheet does not show the name: %s", shown)
	}
	if images := b.value(`document.images.length + " " + document.title`); images != "0 nearlb" {
		t.Errorf("images and title: %v", images)
	}
	b.quiet()
}

func TestTheMapAndTheTableSayTheSame(t *testing.T) {
	b, _, url := page(t)
	b.open(url, 1600, 900, "light")
	if cells := b.value(`[...document.querySelectorAll("[data-key='row shop/unready:http'] .rate")].map(e => e.textContent).join()`); cells != "zone eu-west-1a: none goes here: no-endpoints,zone eu-west-1b: none goes here: no-endpoints" {
		t.Errorf("of a Service without ready endpoints: %v", cells)
	}
	order := b.value(`[...document.querySelectorAll(".service strong")].map(e => e.textContent).join()`)
	if table := b.value(`[...document.querySelectorAll("tr.total th")].map(e => e.textContent).join()`); table != order {
		t.Errorf("map %v, table %v", order, table)
	}
	if fails := b.value(`[...document.querySelectorAll(".service.fails strong")].map(e => e.textContent).join()`); fails != "shop/cart:grpc,shop/empty:http,shop/refusing:http,shop/unready:http" {
		t.Errorf("red are %v", fails)
	}
	if bad := b.value(`[...document.querySelectorAll("tr.total .bad")].map(e => e.textContent).join("; ")`); bad != "unanswered, ejected; no-endpoints, rejected; refused; no-endpoints" {
		t.Errorf("the table says %v", bad)
	}
	b.quiet()
}

// A person without a mouse goes to the first Service, opens it, and comes back to it.
func TestThePageIsUsedByKeys(t *testing.T) {
	b, s, url := page(t)
	b.open(url, 800, 900, "light")
	for range 3 {
		b.press("Tab", "")
	}
	if at := b.value(`document.activeElement.dataset.service`); at != "shop/cart" {
		t.Fatalf("the third stop is %v", at)
	}
	b.press("Enter", "\r")
	b.until(`document.querySelector("#why[open] #answer table")`)
	looks := b.value(`document.body.dataset.looks`).(string)
	b.press("Escape", "")
	b.until(`!document.querySelector("#why[open]") && document.body.dataset.looks > ` + looks + ` + 1`)
	if at := b.value(`document.activeElement.dataset.service`); at != "shop/cart" {
		t.Errorf("two looks later the focus is on %v", at)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.asked) != 1 || s.asked[0] != "shop/cart " {
		t.Errorf("asked for %q", s.asked)
	}
	b.quiet()
}

func TestAClientsPacketsAreAskedFor(t *testing.T) {
	b, s, url := page(t)
	b.open(url, 800, 900, "light")
	b.value(`document.querySelector(".backend").click()`)
	b.until(`document.querySelector("#answer table")`)
	b.value(`document.querySelector("#client").focus(), document.querySelector("#client").value = "10.244.1.7"`)
	b.press("Enter", "\r")
	s.await(b, 2)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked[1] != "shop/cart 10.244.1.7" {
		t.Errorf("asked for %q", s.asked)
	}
	b.quiet()
}

func (s *source) await(b *browser, asked int) {
	b.t.Helper()
	for range 100 {
		b.value(`new Promise(done => requestAnimationFrame(done))`)
		s.mu.Lock()
		n := len(s.asked)
		s.mu.Unlock()
		if n >= asked {
			return
		}
		b.value(`new Promise(done => setTimeout(done, 50))`)
	}
	b.t.Fatalf("%d questions do not come", asked)
}

func TestThePageSaysWhoseTablesTheyAre(t *testing.T) {
	b, s, url := page(t)
	s.of(0, func(node map[string]any) {
		node["agent"] = map[string]any{"works": false, "state": "serving", "text": "dead: process 7 is gone"}
	})
	b.open(url, 360, 900, "light")
	if said := b.value(`document.querySelector("#banners").textContent`).(string); !strings.Contains(said, "no agent follows changes") || !strings.Contains(said, "dead: process 7 is gone") {
		t.Errorf("of a dead agent's tables: %s", said)
	}
	b.quiet()
	s.mu.Lock()
	s.fails = true
	s.mu.Unlock()
	b.until(`document.querySelector("#banners").textContent.includes("no tables <b>here</b>")`)
	s.mu.Lock()
	s.fails = false
	s.mu.Unlock()
	b.until(`document.querySelector("#banners").textContent.includes("dead: process 7 is gone")`)
}

func TestThePageFiltersAndShowsNothing(t *testing.T) {
	b, _, url := page(t)
	b.open(url, 800, 900, "dark")
	b.value(`document.querySelector("#filter").focus()`)
	b.call("Input.insertText", map[string]any{"text": "shop/"}, nil)
	b.until(`document.querySelectorAll(".service").length === 4`)
	b.call("Input.insertText", map[string]any{"text": "nobody"}, nil)
	b.until(`document.querySelector("#rows").textContent === "No Service has this in its name."`)
	if left := b.value(`document.querySelectorAll("#arrows path, #table tr").length`); left != 0.0 {
		t.Errorf("%v arrows and rows of nothing", left)
	}
	b.quiet()
}

// Who types on has the answer to what was typed last, whichever comes last.
func TestAnOldAnswerDoesNotTakeANewOnesPlace(t *testing.T) {
	b, s, url := page(t)
	b.open(url, 800, 900, "light")
	b.value(`(() => {
		const asked = fetch;
		window.answered = [];
		window.fetch = async path => {
			const answer = await asked(path), doc = await answer.json();
			answered.push(path);
			return { ok: answer.ok, json: async () => doc };
		};
	})()`)
	goOn, held := make(chan struct{}), make(chan struct{}, 1)
	s.mu.Lock()
	s.hold = func(filter string) {
		if filter == "default/" {
			held <- struct{}{}
			<-goOn
		}
	}
	s.mu.Unlock()
	b.value(`document.querySelector("#filter").focus()`)
	b.call("Input.insertText", map[string]any{"text": "default/"}, nil)
	<-held
	b.value(`document.querySelector("#filter").select()`)
	b.call("Input.insertText", map[string]any{"text": "shop/"}, nil)
	b.until(`document.querySelectorAll(".service").length === 4`)
	close(goOn)
	b.until(`answered.some(path => path.includes("default"))`)
	b.value(`new Promise(done => requestAnimationFrame(done))`)
	if shown := b.value(`[...document.querySelectorAll(".service")].map(c => c.dataset.service).join()`); shown != "shop/cart,shop/empty,shop/refusing,shop/unready" {
		t.Errorf("with the filter shop/ it shows %v", shown)
	}
	b.quiet()
}

func TestAPausedPageFilters(t *testing.T) {
	b, _, url := page(t)
	b.open(url, 800, 900, "light")
	b.value(`document.querySelector("#pause").click()`)
	b.value(`(() => {
		const later = setTimeout;
		window.delays = [];
		window.setTimeout = (what, delay) => { if (what === look) delays.push(delay); return later(what, delay); };
	})()`)
	b.value(`document.querySelector("#filter").focus()`)
	b.call("Input.insertText", map[string]any{"text": "shop/"}, nil)
	b.until(`document.querySelectorAll(".service").length === 4`)
	if again := b.value(`delays.join()`); again != "" {
		t.Errorf("paused, it looks again after %v ms", again)
	}
	b.value(`document.querySelector("#pause").click()`)
	b.until(`delays.length`)
	b.quiet()
}

func TestNodesAddUp(t *testing.T) {
	b, s, url := page(t)
	other := document(t, "map.json")["nodes"].([]any)[0].(map[string]any)
	other["node"], other["zone"] = "node-b-1", "eu-west-1b"
	s.mapped["nodes"] = append(s.mapped["nodes"].([]any), other, map[string]any{"node": "node-c-1", "error": "cannot be asked"})
	b.open(url, 1600, 900, "light")
	if said := b.value(`document.querySelector("#banners").textContent`); said != "node node-c-1: cannot be asked" {
		t.Errorf("of a node that cannot be asked: %v", said)
	}
	card := b.value(`document.querySelector("[data-key='service default/web:http']").textContent`).(string)
	if !strings.Contains(card, "913/s, 142 open") {
		t.Errorf("the sum of two nodes: %s", card)
	}
	if rate := b.value(`document.querySelector("[data-key='cell default/web:http eu-west-1a'] .rate").textContent`).(string); !strings.Contains(rate, "901/s, of which 451/s from other zones") && !strings.Contains(rate, "901/s, of which 450/s from other zones") {
		t.Errorf("into zone a: %s", rate)
	}
	b.picture("nodes-1600-light.png", true)
	b.quiet()
}

// A node where nothing goes on, of an agent of before that wrote null for a list without elements.
func TestAnIdleNodeDoesNotKeepThePageFromBeingShown(t *testing.T) {
	b, s, url := page(t)
	s.of(0, func(node map[string]any) { node["zones"] = nil })
	b.open(url, 800, 900, "light")
	if cards := b.value(`document.querySelectorAll(".service").length`).(float64); cards == 0 {
		t.Errorf("no Service is shown: %v", b.value(`document.querySelector("#banners").textContent`))
	}
	b.quiet()
}
