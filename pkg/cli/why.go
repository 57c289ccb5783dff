// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/trace"

	"github.com/nearlb/nearlb/pkg/table"
)

func whyCommand() *cobra.Command {
	var live agentFlags
	var from, kubeconfig string
	cmd := &cobra.Command{
		Use:   "why POD|IP SERVICE[:PORT]",
		Short: "Say where a client's connections to a Service go, what is wrong",
		Long: `Sends a first packet of the client to each address of the Service through the
BPF program, over the live tables, and puts beside what it decided the reason of
each endpoint, what was dropped of this client in the last 10 minutes, and what
the agent says of the Service. The likely cause comes first, with what to do.
A pod is named as namespace/name; the agent knows those of this node that
Services have as endpoints, and an IP address does for all others. With
--kubeconfig it asks the API server, too, and says what differs from it.`,
		Example: `  nearlb why 10.244.1.7 prod/web
  nearlb why prod/cart-0 prod/web:http -o json
  nearlb why 203.0.113.7 prod/web --from network`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return command.Usagef("want two arguments, POD|IP and SERVICE[:PORT], as 10.244.1.7 prod/web: there are %d", len(args))
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) != 1 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return liveServices(&live.pins), cobra.ShellCompDirectiveNoFileComp
		},
	}
	live.add(cmd.Flags())
	cmd.Flags().StringVar(&from, "from", "", "`DOOR` that the client is behind: pod (of this node), host or network (default: by the client's address)")
	command.Complete(cmd, "from", doors)
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "`FILE` that says where the API server is, to compare with it (default: it is not asked)")
	output := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if from != "" && !slices.Contains(doors(), from) {
			return command.Usagef("--from %q: want pod, host or network", from)
		}
		seen, err := look(cmd.Context(), &live, args[0], args[1], trace.Door(from))
		if err != nil {
			return err
		}
		if kubeconfig != "" {
			again := func() error { return seen.readAgain(cmd.Context(), &live) }
			if err := seen.askAPI(cmd.Context(), kubeconfig, again); err != nil {
				return err
			}
		}
		doc := diagnose(seen)
		if err := printWhy(cmd.OutOrStdout(), output.Value, doc); err != nil {
			return err
		}
		if doc.missed() {
			return command.QuietError{}
		}
		return nil
	}
	return cmd
}

func printWhy(out io.Writer, format string, doc whyDocument) error {
	switch format {
	case command.FormatJSON:
		return command.WriteJSON(out, doc)
	case command.FormatYAML:
		return command.WriteYAML(out, doc)
	}
	return writeWhy(out, table.TerminalWidth(out), doc)
}

// seen is all that is to be known of a client and a Service.
type seen struct {
	now       time.Time
	client    string // as it was asked for
	service   lb.ServiceName
	port      string // name or number; "" for all
	status    *agent.Status
	unknown   error             // why status is nil
	news      agent.ServiceNews // of an agent that answers
	answered  bool
	frontends []maps.FrontendRow // of the Service, all ports
	backends  []maps.BackendRow  // likewise
	tries     []try
	refused   []try          // where no packet was sent: those that the tables would refuse
	drops     []journal.Drop // of this client towards the Service, of late

	others []otherProgram // at the client's device

	// Of the API server, where it was asked.
	unasked     error // it could not be
	unpublished bool  // it has the Service, and nothing of it is in force
	differences []apiDifference
}

// try is what became of one packet.
type try struct {
	Frontend string       `json:"frontend"`
	Kind     string       `json:"kind"`
	Port     string       `json:"port"`
	Protocol string       `json:"protocol"`
	From     trace.Door   `json:"from"`
	Client   netip.Addr   `json:"client"`
	Answer   trace.Answer `json:"answer"`
	to       netip.Addr   // the frontend's
	side     maps.SideRow // what the tables say for such clients
}

// look gathers what there is. Only what makes no sense to go on from is an error: everything else may be the cause.
func look(ctx context.Context, live *agentFlags, client, target string, from trace.Door) (*seen, error) {
	s, err := lookFor(live, target)
	if err != nil {
		return nil, err
	}
	address, pod := s.clientOf(client)
	s.client = client
	s.askAgent(ctx, live, pod)
	addresses := s.news.Addresses
	if address.IsValid() {
		addresses = []netip.Addr{address}
	}
	if len(addresses) == 0 {
		return nil, fmt.Errorf("pod %s: no agent knows its address: it knows those of this node that Services have as endpoints; name its IP address", pod)
	}
	if err := s.try(live, addresses, from); err != nil {
		return nil, err
	}
	return s, s.lookAtDrops(ctx, live, func(row *journal.Drop) bool {
		return slices.ContainsFunc(addresses, func(a netip.Addr) bool { f := dropFilter{client: a.String()}; return f.keepsClient(row) })
	})
}

// lookAtService gathers what there is without a client, whose packets are not asked about then: the tables say what would be refused.
func lookAtService(ctx context.Context, live *agentFlags, target string) (*seen, error) {
	s, err := lookFor(live, target)
	if err != nil {
		return nil, err
	}
	s.askAgent(ctx, live, "")
	s.askTables()
	return s, s.lookAtDrops(ctx, live, func(*journal.Drop) bool { return true })
}

// askTables notes what they refuse, in place of the answers to packets.
func (s *seen) askTables() {
	for _, f := range s.asked(trace.FromPod) {
		if f.Internal.Action != string(lb.Balance) {
			s.refused = append(s.refused, try{Frontend: table.HostPort(f.Address, f.FrontendPort), Kind: f.Kind, Port: f.Port, Protocol: f.Protocol, From: trace.FromPod,
				Answer: trace.Answer{Verdict: f.Internal.Action, Reason: f.Internal.Reason}, to: f.Address, side: f.Internal})
		}
	}
}

// lookFor finds the Service, and what the agent last said of itself.
func lookFor(live *agentFlags, target string) (*seen, error) {
	s := &seen{now: time.Now()}
	asked, port, _ := strings.Cut(target, ":")
	s.port = port
	if status, err := agent.ReadStatus(live.lockDir, live.pins.pinPath); err == nil {
		s.status = &status
	} else {
		s.unknown = err
	}
	return s, live.pins.read(func(r *maps.Reader) error { return s.find(r, asked) })
}

// askAgent has the agent tell of the Service and of a client, if one answers.
func (s *seen) askAgent(ctx context.Context, live *agentFlags, client string) {
	news, err := agent.AskService(ctx, live.lockDir, live.pins.pinPath, s.service, client)
	if s.answered = err == nil; s.answered {
		s.news = news
	} else if !errors.Is(err, agent.ErrNotAsked) && s.unknown == nil {
		s.unknown = err
	}
}

// find takes the Service of a name, which must be that of one.
func (s *seen) find(r *maps.Reader, asked string) error {
	names := map[lb.ServiceName]bool{}
	keep := func(p lb.PortName) bool { return keepsService(asked, p.Service.String(), p.Port) }
	for row, err := range r.FrontendsOf(keep) {
		if err != nil {
			continue // a damaged entry: the packet tells what it does
		}
		var name lb.ServiceName
		if name.UnmarshalText([]byte(row.Service)) == nil {
			names[name] = true
			s.service, s.frontends = name, append(s.frontends, row)
		}
	}
	if len(names) > 1 {
		return command.Usagef("Service %q: there are %d of this name: want namespace/name", asked, len(names))
	}
	if len(names) == 0 && s.service.UnmarshalText([]byte(asked)) != nil {
		s.service = lb.ServiceName{Namespace: "default", Name: asked}
	}
	for row, err := range r.BackendsOf(func(p lb.PortName) bool { return p.Service == s.service }) {
		if err == nil { // nearlb backends tells of those that cannot be read
			s.backends = append(s.backends, row)
		}
	}
	return nil
}

// clientOf reads an address, or a Pod's name, which is in the Service's namespace where it says none.
func (s *seen) clientOf(text string) (address netip.Addr, asked string) {
	if address, err := netip.ParseAddr(text); err == nil {
		return address.Unmap(), address.Unmap().String()
	}
	if !strings.Contains(text, "/") {
		text = s.service.Namespace + "/" + text
	}
	return netip.Addr{}, text
}

// mostTries keeps a Service with many addresses from taking long.
const mostTries = 32

// try sends packets from each of the client's addresses to each frontend of its family.
func (s *seen) try(live *agentFlags, addresses []netip.Addr, from trace.Door) (err error) {
	if len(s.asked(from)) == 0 {
		return nil // loading the programs takes longer than all the rest
	}
	doors := make([]trace.Door, len(addresses))
	for i, client := range addresses {
		if doors[i] = from; from == "" {
			doors[i] = s.doorOf(client, live.pins.pinPath)
		}
	}
	tracer, err := trace.Live(live.pins.pinPath, doors...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tracer.Close()) }()
	return s.tryBy(tracer, addresses, doors)
}

// tryBy is try with the door of each address.
func (s *seen) tryBy(tracer *trace.Tracer, addresses []netip.Addr, doors []trace.Door) error {
	for i, client := range addresses {
		door := doors[i]
		for _, f := range s.asked(door) {
			if f.Address.Is4() != client.Is4() || len(s.tries) == mostTries {
				continue
			}
			protocol, err := lb.ParseProtocol(f.Protocol)
			if err != nil {
				return err
			}
			answer, err := tracer.Do(trace.Request{From: door, Source: netip.AddrPortFrom(client, 0), To: netip.AddrPortFrom(f.Address, f.FrontendPort), Protocol: protocol})
			if err != nil {
				return err
			}
			side := f.Internal
			if door == trace.FromNetwork {
				side = f.External
			}
			s.tries = append(s.tries, try{table.HostPort(f.Address, f.FrontendPort), f.Kind, f.Port, f.Protocol, door, client, answer, f.Address, side})
		}
	}
	return nil
}

// asked are the frontends of the port that was asked for, those first that such a client uses most likely.
func (s *seen) asked(door trace.Door) []maps.FrontendRow {
	rows := slices.DeleteFunc(slices.Clone(s.frontends), func(f maps.FrontendRow) bool { return !s.wants(f) })
	first := map[string]int{string(lb.KindClusterIP): 0, string(lb.KindLoadBalancer): 1, string(lb.KindExternalIP): 2, string(lb.KindNodePort): 3}
	if door == trace.FromNetwork {
		first[string(lb.KindClusterIP)] = 4
	}
	slices.SortStableFunc(rows, func(a, b maps.FrontendRow) int { return first[a.Kind] - first[b.Kind] })
	return rows
}

// wants tells whether a frontend is of the port that was asked for, by name or by the Service's number.
func (s *seen) wants(f maps.FrontendRow) bool {
	return s.port == "" || s.port == f.Port || s.port == strconv.Itoa(int(f.FrontendPort))
}

// doorOf is where packets of an address come in: at a pod's device if the node's route to it leads there. It notes who else sees them there.
func (s *seen) doorOf(client netip.Addr, pinPath string) trace.Door {
	if client.IsLoopback() || s.status != nil && slices.Contains(s.status.Node.Addresses, client.String()) {
		return trace.FromHost
	}
	device, found := podDevice(client, pinPath)
	if found {
		s.noteOthers(device, bpf.LinkDirectory(pinPath))
	}
	if found || s.news.Pod != "" {
		return trace.FromPod
	}
	return trace.FromNetwork
}

// podDevice is the device that the node's route to a pod leads to, with the program that its packets meet.
func podDevice(client netip.Addr, pinPath string) (attach.DeviceRow, bool) {
	routes, err := netlink.RouteGet(client.AsSlice())
	devices, failed := attach.List(bpf.LinkDirectory(pinPath))
	if err != nil || failed != nil {
		return attach.DeviceRow{}, false
	}
	at := slices.IndexFunc(devices, func(device attach.DeviceRow) bool {
		return device.Kind == "pod" && device.Hook == "ingress" && slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.LinkIndex == device.Ifindex && r.Gw == nil })
	})
	if at < 0 {
		return attach.DeviceRow{}, false
	}
	return devices[at], true
}

// lately is how old drops may be to be told.
const lately = 10 * time.Minute

func (s *seen) lookAtDrops(ctx context.Context, live *agentFlags, of func(*journal.Drop) bool) error {
	if !s.answered {
		return nil
	}
	return agent.ReadDrops(ctx, live.lockDir, live.pins.pinPath, false, func(news agent.News) error {
		var row journal.Drop
		if news.Line == nil {
			return nil
		}
		if err := json.Unmarshal(*news.Line, &row); err != nil {
			return fmt.Errorf("read the agent's answer: %w", err)
		}
		if of(&row) && row.Service == s.service.String() && s.now.Sub(row.Time) < lately {
			s.drops = append(s.drops, row)
		}
		return nil
	})
}
