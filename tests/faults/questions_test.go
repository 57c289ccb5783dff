// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
)

// runAsAsker has this test binary be a pod with very many questions.
const runAsAsker = "NEARLB_TEST_ASK"

// What an asker does.
const (
	askers       = 32
	askedASecond = 10_000 // by all of them, where the machine lets them
)

// asking counts an asker's questions.
type asking struct{ answered, again, lost atomic.Int64 }

func (a *asking) String() string {
	return fmt.Sprintln(a.answered.Load(), a.again.Load(), a.lost.Load())
}

// askMain asks for the address of a name until it is told to end, each time from a new socket, and prints ten times a second what became of
// its questions.
func askMain(to, name string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var all asking
	var group sync.WaitGroup
	for range askers {
		group.Go(func() { all.ask(ctx, to, name) })
	}
	for ctx.Err() == nil {
		fmt.Print(&all)
		time.Sleep(100 * time.Millisecond)
	}
	group.Wait()
	fmt.Print(&all)
	return 0
}

// ask is one client of an asker: it asks once more, as resolvers do, what was not answered or was refused.
func (a *asking) ask(ctx context.Context, to, name string) {
	const pause = askers * time.Second / askedASecond
	for next := time.Now(); ctx.Err() == nil; next = next.Add(pause) {
		time.Sleep(time.Until(next))
		err := askAt(to, name, resolverTime)
		if err != nil {
			a.again.Add(1)
			time.Sleep(pace)
			err = askAt(to, name, patience)
		}
		if err != nil {
			a.lost.Add(1)
			continue
		}
		a.answered.Add(1)
	}
}

func askAt(to, name string, patience time.Duration) error {
	conn, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	over := &wire.Conn{Conn: conn}
	defer over.Close()
	if err := over.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if err := over.WriteMsg(new(wire.Msg).SetQuestion(name, wire.TypeA)); err != nil {
		return err
	}
	m, err := over.ReadMsg()
	if err == nil && (m.Rcode != wire.RcodeSuccess || len(m.Answer) != 1) {
		err = fmt.Errorf("%s: %v", name, m)
	}
	return err
}

// asker is an asker that runs in a pod.
type asker struct {
	*lab.Process
	*cluster
}

func (c *cluster) asks(pod *lab.Pod, to netip.AddrPort, name string) asker {
	c.t.Helper()
	p, err := pod.Start("asker", []string{"/proc/self/exe", to.String(), name}, runAsAsker+"=1")
	c.must(err)
	return asker{p, c}
}

// told is what the asker said last.
func (a asker) told() (answered, again, lost int64) {
	a.t.Helper()
	text, err := os.ReadFile(a.Log)
	a.must(err)
	lines := strings.Split(string(text), "\n")
	if len(lines) < 2 {
		return 0, 0, 0
	}
	if _, err := fmt.Sscan(lines[len(lines)-2], &answered, &again, &lost); err != nil {
		a.t.Fatalf("an asker said: %s", lines[len(lines)-2])
	}
	return answered, again, lost
}

// more waits for so many further answers.
func (a asker) more(answers int64) {
	a.t.Helper()
	from, _, _ := a.told()
	a.await(fmt.Sprintf("%d more answers", answers), func() bool {
		answered, _, lost := a.told()
		return answered >= from+answers || lost > 0
	})
}

// An agent that is killed while a pod asks ten thousand questions a second loses none that is asked twice, nor does one that starts again,
// and one that ends in order.
func TestAnAgentKilledUnderVeryManyQuestionsLosesNoneThatIsAskedTwice(t *testing.T) {
	const questions = 3000
	c, n, pod, _ := oneNode(t)
	at := netip.AddrPortFrom(c.clusterDNS(n).address(false).Addr(), 53)
	for _, flag := range []string{"--dns-fast-path=false", "--dns-fast-path"} {
		answers := func(who string, ttl int) {
			t.Helper()
			c.await(who+" answers", func() bool {
				got, err := resolve(pod, way{"udp", false}, at, webName)
				return err == nil && got == ttl
			})
		}
		start := func() *running {
			a := c.agent(n, "--dns", "--dns-service=default/kube-dns", flag)
			a.serving()
			a.await("a responder", func(s agent.Status) bool { return s.Listen["dns"] != "" })
			answers("the node", nodesTTL)
			return a
		}
		a, asker := start(), c.asks(pod, at, webName)
		asker.more(questions)
		began := time.Now()
		first, _, _ := asker.told()
		c.must(syscall.Kill(a.PID(), syscall.SIGKILL))
		<-a.Ended()
		answers("the cluster's DNS", clustersTTL)
		asker.more(questions)
		a = start()
		asker.more(questions)
		c.must(a.Stop())
		answers("the cluster's DNS", clustersTTL)
		asker.more(questions)
		took := time.Since(began)
		c.must(asker.Stop())
		answered, again, lost := asker.told()
		if lost > 0 {
			t.Errorf("%s: of %d questions %d were asked twice, and %d of these were not answered", flag, answered+lost, again, lost)
		}
		t.Logf("%s: %d questions, of them %d were asked twice; %.0f a second", flag, answered, again, float64(answered-first)/took.Seconds())
		c.must(os.Remove(asker.Log))
	}
}
