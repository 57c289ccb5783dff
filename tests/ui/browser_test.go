// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// browser is a headless Chromium, asked by the DevTools protocol over a pipe: JSON with a zero byte behind each message.
type browser struct {
	t        *testing.T
	to       *os.File
	messages chan message
	last     int
	session  string
	target   string
	said     []string // on the console, and errors
}

type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// patience is for what a browser does on a machine that has other work.
const patience = time.Minute

func start(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("make ui-test installs it: %v", err)
	}
	theirs, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, theirsToo, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--hide-scrollbars", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{theirs, theirsToo}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	theirs.Close()
	theirsToo.Close()
	b := &browser{t: t, to: to, messages: make(chan message, 1000)}
	go b.read(from)
	t.Cleanup(func() {
		_ = b.send("Browser.close", nil)
		_ = cmd.Wait() // it closes its end of the pipe, and so read ends
		to.Close()
		from.Close()
	})
	return b
}

// read passes messages on until the pipe ends.
func (b *browser) read(from *os.File) {
	defer close(b.messages)
	var rest []byte
	piece := make([]byte, 1<<16)
	for {
		n, err := from.Read(piece)
		if err != nil {
			return
		}
		rest = append(rest, piece[:n]...)
		for {
			end := bytes.IndexByte(rest, 0)
			if end < 0 {
				break
			}
			var m message
			if json.Unmarshal(rest[:end], &m) == nil {
				b.messages <- m
			}
			rest = rest[end+1:]
		}
	}
}

func (b *browser) send(method string, params any) error {
	text, err := json.Marshal(params)
	if err != nil {
		return err
	}
	if params == nil {
		text = []byte("{}")
	}
	b.last++
	text, err = json.Marshal(message{ID: b.last, SessionID: b.session, Method: method, Params: text})
	if err != nil {
		return err
	}
	_, err = b.to.Write(append(text, 0))
	return err
}

// call waits for the answer, and notes what the page says meanwhile.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	if err := b.send(method, params); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	m, err := b.await(func(m *message) bool { return m.ID == b.last })
	if err == nil && m.Error != nil {
		err = errors.New(m.Error.Message)
	}
	if err == nil && result != nil {
		err = json.Unmarshal(m.Result, result)
	}
	if err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
}

func (b *browser) await(wanted func(*message) bool) (message, error) {
	late := time.After(patience)
	for {
		select {
		case m, open := <-b.messages:
			if !open {
				return m, errors.New("chromium has gone")
			}
			switch m.Method {
			case "Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled":
				b.said = append(b.said, m.Method+" "+string(m.Params))
			}
			if wanted(&m) {
				return m, nil
			}
		case <-late:
			return message{}, fmt.Errorf("no answer in %v", patience)
		}
	}
}

// open shows a page in a window.
func (b *browser) open(url string, width, height int, scheme string) {
	b.t.Helper()
	b.session = ""
	if b.target != "" {
		b.call("Target.closeTarget", map[string]any{"targetId": b.target}, nil)
	}
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session, b.target = attached.SessionID, target.TargetID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]string{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	b.until("document.body && document.body.dataset.looks > 0")
}

// value evaluates an expression, which may be a promise.
func (b *browser) value(expression string) any {
	b.t.Helper()
	var answer struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &answer)
	if answer.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, answer.ExceptionDetails)
	}
	return answer.Result.Value
}

// until waits for a condition, which the page itself looks at once a frame.
func (b *browser) until(condition string) {
	b.t.Helper()
	wait := fmt.Sprintf("new Promise(done => { const end = Date.now() + %d; const look = () => { if (%s) done(true); else if (Date.now() > end) done(false); else setTimeout(look, 20); }; look(); })",
		(patience / 4).Milliseconds(), condition)
	if b.value(wait) != true {
		b.t.Fatalf("%s does not come true; the console says %q", condition, b.said)
	}
}

// press is a key, as a person presses it.
func (b *browser) press(key, text string) {
	b.t.Helper()
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key, "code": key, "text": text, "windowsVirtualKeyCode": map[string]int{"Enter": 13, "Tab": 9, "Escape": 27}[key]}, nil)
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key}, nil)
}

// picture writes what is shown to a file of NEARLB_UI_PICTURES; all: what is below the window, too.
func (b *browser) picture(name string, all bool) {
	b.t.Helper()
	directory := os.Getenv("NEARLB_UI_PICTURES")
	if directory == "" {
		return
	}
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": all}, &shot)
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = os.MkdirAll(directory, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(directory, name), data, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// quiet fails if the page said anything: errors, or what the browser kept it from doing.
func (b *browser) quiet() {
	b.t.Helper()
	for _, text := range b.said {
		b.t.Errorf("the console says %s", text)
	}
	b.said = nil
}
