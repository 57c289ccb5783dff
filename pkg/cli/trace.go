// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/trace"
	"github.com/nearlb/nearlb/pkg/watch"

	"github.com/nearlb/nearlb/pkg/table"
)

// traceFlags describe one request, or where many are.
type traceFlags struct {
	from     string
	src, dst string
	proto    string
	count    int
	packets  string
	question string
	qtype    string
}

func traceCommand() *cobra.Command {
	var objects command.ObjectFlags
	var pins pinFlags
	var ask traceFlags
	cmd := &cobra.Command{
		Use:   "trace --from DOOR --src IP[:PORT] --dst IP:PORT --proto tcp|udp",
		Short: "Say what happens to a packet: the real BPF program decides",
		Long: `Sends the first packet of a connection through the BPF program, in the kernel,
and says what it decided. The tables are the live ones, read only: no flow is
made, no counter changes. With -f they are private ones, made from objects as
for nearlb plan. With --question the packet asks for a name: what the programs
answer is said, or who else is asked and why.`,
		Example: `  nearlb trace --from pod --src 10.244.1.1 --dst 10.96.0.10:80 --proto tcp
  nearlb trace -f objects.yaml --node n1 --from pod --src 10.244.1.1 \
      --dst 10.96.0.10:80 --proto tcp --count 1000
  nearlb trace --from pod --src 10.244.1.1 --dst 10.96.0.10:53 --proto udp \
      --question web.prod.svc.cluster.local
  nearlb trace --packets packets.jsonl -o jsonl`,
		Args: command.NoArguments,
	}
	objects.Add(cmd.Flags())
	objects.AddOffNode(cmd)
	pins.add(cmd.Flags())
	ask.add(cmd)
	output := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatJSONL, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		requests, err := ask.requests(cmd, &objects)
		if err != nil {
			return err
		}
		tracer, err := openTracer(cmd, &objects, &pins, ask.doors()...)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, tracer.Close()) }()
		return answerAll(cmd.OutOrStdout(), tracer, requests, output.Value, ask.packets != "")
	}
	return cmd
}

func (f *traceFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.from, "from", "", "`DOOR` that the packet comes through: pod (of this node), host (a socket of the node itself) or network")
	flags.StringVar(&f.src, "src", "", "`IP[:PORT]` of the client")
	flags.StringVar(&f.dst, "dst", "", "`IP:PORT` that it connects to")
	flags.StringVar(&f.proto, "proto", "", "`tcp`, udp, sctp or icmp (an echo request; --dst then has no port)")
	flags.IntVar(&f.count, "count", 1, "send `N` first packets, each from another source port")
	flags.StringVar(&f.packets, "packets", "", "`FILE` of packets, one JSON object a line; - is standard input")
	flags.StringVar(&f.question, "question", "", "`NAME` that the packet asks for, by UDP; without -f, which makes no table of names")
	flags.StringVar(&f.qtype, "question-type", "A", "`TYPE` of records that it asks for")
	command.Complete(cmd, "from", doors)
	command.Complete(cmd, "proto", func() []string { return []string{"tcp", "udp", "sctp", "icmp"} })
}

// doors are those that packets come through; none: any.
func (f *traceFlags) doors() []trace.Door {
	if f.packets != "" {
		return nil
	}
	return []trace.Door{trace.Door(f.from)}
}

// doors are the values of --from.
func doors() []string {
	return []string{string(trace.FromPod), string(trace.FromHost), string(trace.FromNetwork)}
}

// openTracer makes private tables from objects, if there are any, and takes the live ones otherwise.
func openTracer(cmd *cobra.Command, objects *command.ObjectFlags, pins *pinFlags, through ...trace.Door) (*trace.Tracer, error) {
	if len(objects.Files) == 0 {
		return trace.Live(pins.pinPath, through...)
	}
	warn := command.WarnTo(cmd.ErrOrStderr())
	source, err := objects.Load(cmd.InOrStdin(), warn)
	if err != nil {
		return nil, err
	}
	decisions := command.Decisions(source)
	for i := range decisions {
		decisions[i].OffNode = cmp.Or(decisions[i].OffNode, objects.OffNode)
	}
	tracer, problems, err := trace.Offline(decisions, configuration(source), through...)
	for _, p := range problems {
		warn(p.Object + ": " + p.Field + ": " + p.Message)
	}
	return tracer, err
}

// configuration is what an agent would tell the programs.
func configuration(source watch.Source) maps.Config {
	config := maps.Config{ServiceCIDRs: source.ServiceCIDRs(), SNATPorts: maps.DefaultSNATPorts()}
	return config.WithNode(source.Node())
}

// answerAll answers in the order of the requests. A file of packets makes a list, even of one.
func answerAll(out io.Writer, tracer *trace.Tracer, requests requestReader, format string, many bool) error {
	answers := []trace.Answer{}
	for {
		request, err := requests()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		answer, err := tracer.Do(request)
		if err != nil {
			return err
		}
		switch format {
		case command.FormatJSONL:
			err = command.WriteJSONLine(out, answer)
		case command.FormatTable:
			err = writeAnswer(out, table.TerminalWidth(out), request, answer)
		default:
			answers = append(answers, answer)
		}
		if err != nil {
			return err
		}
	}
	var document any = answers
	if !many {
		if len(answers) == 0 {
			return nil
		}
		document = answers[0]
	}
	switch format {
	case command.FormatJSON:
		return command.WriteJSON(out, document)
	case command.FormatYAML:
		return command.WriteYAML(out, document)
	}
	return nil
}
