// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/ui"
)

// uiAddress is where nearlb ui listens if nobody says.
const uiAddress = "127.0.0.1:8249"

// formatPage is a server of the page, in the place of a document.
const formatPage = "page"

// uiOptions is what nearlb ui was asked for.
type uiOptions struct {
	live     agentFlags
	listen   string
	filter   string
	service  string
	interval time.Duration
}

func uiCommand() *cobra.Command {
	o := uiOptions{}
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Serve a page for browsers: a map of the Services, and what fails",
		Long: `Serves a page on a loopback address until it is interrupted: the Services of
this node's tables, their backends by zone, how many new connections go there,
what fails in red, and for each Service what nearlb why says. It changes nothing
and needs no agent. Everybody on this host may look; nobody else. With -o json
it prints what the page reads, once.`,
		Example: `  nearlb ui
  nearlb ui --listen [::1]:9000
  nearlb ui -o json --service prod/web`,
		Args: command.NoArguments,
	}
	flags := cmd.Flags()
	o.live.add(flags)
	flags.StringVar(&o.listen, "listen", uiAddress, "loopback `address` of the page")
	flags.StringVar(&o.filter, "filter", "", "with -o json: only Services whose namespace/name:port contains `text`")
	flags.StringVar(&o.service, "service", "", "with -o json: what is known of this Service, `namespace/name`")
	flags.DurationVar(&o.interval, "interval", time.Second, "with -o json: time between two readings")
	command.Complete(cmd, "service", func() []string { return liveServices(&o.live.pins) })
	output := command.AddOutputFlag(cmd, formatPage, command.FormatJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		if o.filter != "" && o.service != "" {
			return command.Usagef("--filter is for the map, --service for what is known of one Service: want one of them")
		}
		if output.Value == command.FormatJSON {
			return o.print(ctx, cmd.OutOrStdout())
		}
		if o.filter != "" || o.service != "" {
			return command.Usagef("--filter and --service are for -o json: the page has both")
		}
		return o.serve(ctx, cmd.OutOrStdout())
	}
	return cmd
}

// serve serves the page until ctx ends.
func (o *uiOptions) serve(ctx context.Context, out io.Writer) error {
	if err := o.live.pins.read(func(*maps.Reader) error { return nil }); err != nil {
		return err // whoever starts it is told here, not on the page
	}
	listener, err := listenLocally(o.listen)
	if err != nil {
		return err
	}
	node := newUINode(o.live, true)
	defer node.close()
	fmt.Fprintf(out, "http://%s/\n", listener.Addr())
	return ui.Serve(ctx, listener, ui.Handler(uiNodes{node}), pageAnswer)
}

// print writes one document.
func (o *uiOptions) print(ctx context.Context, out io.Writer) error {
	node := newUINode(o.live, false)
	node.pause = 0 // --interval says it
	defer node.close()
	if o.service != "" {
		doc, err := node.why(ctx, o.service, "")
		if err != nil {
			return err
		}
		return command.WriteJSON(out, doc)
	}
	if o.interval < 100*time.Millisecond {
		return command.Usagef("--interval %v: want 100ms or more", o.interval)
	}
	if _, err := node.document(ctx, o.filter); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(o.interval):
	}
	doc, err := node.document(ctx, o.filter)
	if err != nil {
		return err
	}
	return command.WriteJSON(out, doc)
}

// pageAnswer is how long an answer of the page may take.
const pageAnswer = time.Minute

// listenLocally refuses addresses that others than this host reach.
func listenLocally(address string) (net.Listener, error) {
	if err := ui.CheckLocal(address); err != nil {
		return nil, command.Usagef("--listen %w", err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return listener, nil
}
