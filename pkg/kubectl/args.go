// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// request is what the plugin was asked for.
type request struct {
	kubeconfig, context string
	agents              string // namespace of the agents' pods
	selector            string // of their labels
	container           string
	nodes               []string // "": all
	timeout             time.Duration
	compare             bool
	file                string // of collect
	mask                bool   // collect: other addresses in the place of the cluster's
	listen              string // ui: where the page is

	command []string // of nearlb, without -o
	output  string   // of -o; "" for a table
}

// usageError is bad usage: exit status 2.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// own are the flags of the plugin; all others are nearlb's.
func (r *request) own() map[string]func(string) error {
	text := func(to *string) func(string) error { return func(value string) error { *to = value; return nil } }
	return map[string]func(string) error{
		"kubeconfig":      text(&r.kubeconfig),
		"context":         text(&r.context),
		"agent-namespace": text(&r.agents),
		"selector": func(value string) error {
			if _, err := labels.Parse(value); err != nil || value == "" {
				return usagef("--selector %q: want labels as app.kubernetes.io/name=nearlb", value)
			}
			r.selector = value
			return nil
		},
		"container": text(&r.container),
		"output":    text(&r.output),
		"file":      text(&r.file),
		"listen":    text(&r.listen),
		"mask":      truth(&r.mask, "mask"),
		"node":      func(value string) error { r.nodes = append(r.nodes, strings.Split(value, ",")...); return nil },
		"timeout": func(value string) (err error) {
			if r.timeout, err = time.ParseDuration(value); err != nil || r.timeout <= 0 {
				return usagef("--timeout %q: want a time as 30s", value)
			}
			return nil
		},
		"compare": truth(&r.compare, "compare"),
	}
}

// truth sets a flag that may stand without a value.
func truth(to *bool, name string) func(string) error {
	return func(value string) error {
		if value != "true" && value != "false" {
			return usagef("--%s=%s: want true or false", name, value)
		}
		*to = value == "true"
		return nil
	}
}

// short are those that have a letter.
var short = map[string]string{"-l": "selector", "-o": "output"}

// parse takes the plugin's flags out of the arguments, wherever they are, until --.
func parse(args []string) (*request, error) {
	r := &request{agents: "kube-system", selector: "app.kubernetes.io/name=nearlb", container: "agent", timeout: 30 * time.Second, compare: true}
	own := r.own()
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			r.command = append(r.command, args[i+1:]...)
			break
		}
		name, value, given := strings.Cut(arg, "=")
		long, isLong := strings.CutPrefix(name, "--")
		if !isLong {
			if len(arg) > 2 && short[arg[:2]] != "" { // -ojson
				name, value, given = arg[:2], strings.TrimPrefix(arg[2:], "="), true
			}
			long = short[name]
		}
		set := own[long]
		if set == nil || long == "" {
			r.command = append(r.command, arg)
			continue
		}
		if !given {
			if long == "compare" || long == "mask" {
				value = "true"
			} else if i++; i >= len(args) {
				return nil, usagef("%s wants a value", name)
			} else {
				value = args[i]
			}
		}
		if err := set(value); err != nil {
			return nil, err
		}
	}
	if slices.Contains(r.nodes, "") {
		return nil, usagef("--node: want names of nodes")
	}
	if r.wantsHelp() {
		return r, nil
	}
	return r, r.check()
}

// wantsHelp tells that nobody is to be asked.
func (r *request) wantsHelp() bool {
	return len(r.command) == 0 || r.command[0] == "help" || r.has("-h", "--help")
}

// readCommands are those that the plugin runs, and whether their answers are rows: -o jsonl is one a line. Others have a document, or a list.
var readCommands = map[string]bool{
	"services": true, "backends": true, "flows": true, "affinity": true, "verdicts": true, "devices": true, "drops": true, "changes": true, "zones": true,
	"top": false, "status": false, "why": false, "check": false, "trace": false, "version": false, "explain": false, "ui": false,
}

func (r *request) check() error {
	if r.command[0] == "collect" {
		if len(r.command) > 1 || r.output != "" {
			return usagef("collect takes --file, --mask and --node, and makes one archive")
		}
		return nil
	}
	if r.file != "" || r.mask {
		return usagef("--file and --mask are collect's")
	}
	if r.listen != "" && r.command[0] != "ui" {
		return usagef("--listen is ui's")
	}
	if r.command[0] == "plan" {
		return usagef("plan asks no node and takes none of these flags: kubectl nearlb plan comes first, its own flags behind it")
	}
	if _, known := readCommands[r.command[0]]; !known {
		names := []string{"collect", "plan"}
		for name := range readCommands {
			names = append(names, name)
		}
		slices.Sort(names)
		return usagef("unknown command %q: want one of %s", r.command[0], strings.Join(names, ", "))
	}
	if r.command[0] == "why" {
		if _, _, err := r.whyArguments(); err != nil {
			return err
		}
	}
	if r.readmits() {
		return usagef("readmit changes a node: kubectl -n %s exec POD -- nearlb %s", r.agents, strings.Join(r.command, " "))
	}
	if r.command[0] == "top" && !r.has("--once") {
		return usagef("top has a screen of one node: kubectl -n %s exec -it POD -- nearlb top; or kubectl nearlb top --once", r.agents)
	}
	return nil
}

// readmits tells that the first word behind backends that is no flag, nor a flag's value, is readmit.
func (r *request) readmits() bool {
	alone := []string{"-w", "--watch", "-A", "--all-namespaces", "--no-headers"} // those without a value
	for i, arg := range r.command {
		before := r.command[max(i-1, 0)]
		if arg == "readmit" && (!strings.HasPrefix(before, "-") || strings.Contains(before, "=") || slices.Contains(alone, before)) {
			return r.command[0] == "backends"
		}
	}
	return false
}

// has tells whether a flag of nearlb's was given.
func (r *request) has(names ...string) bool {
	return slices.ContainsFunc(r.command, func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return slices.Contains(names, name)
	})
}

// follows tells that the command goes on until it is interrupted.
func (r *request) follows() bool {
	return r.has("-w", "--watch") || (r.command[0] == "drops" || r.command[0] == "changes") && r.has("-f", "--follow")
}
