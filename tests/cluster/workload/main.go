// SPDX-License-Identifier: Apache-2.0

// Command workload is what runs in the pods of a test: a server that says which pod it is, a client that tells whether connections live,
// and the process that holds a pod's namespaces.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/nearlb/nearlb/tests/cluster/workload/client"
	"github.com/nearlb/nearlb/tests/cluster/workload/server"
)

const usage = `usage: workload pause
       workload serve PORT               answer each line over TCP, and each datagram, with this pod's name, who asks, and the line
       workload ask [-times N] [-more B] [-within D] URL...   ask each N times over new connections, with B bytes more than it takes,
                                         and print who answers in this time: tcp://HOST:PORT, udp://...
       workload hold URL...              ask each every 100 ms over one connection for ever, and say when one is lost
       workload make URL...              ask each every 100 ms over a new connection for ever, and say how many failed, and why`

func main() {
	if len(os.Args) < 2 {
		fail(usage)
	}
	var err error
	switch os.Args[1] {
	case "pause":
		pause()
	case "serve":
		err = serve(os.Args[2:])
	case "ask":
		err = askAll(os.Args[2:])
	case "hold":
		err = holdAll(os.Args[2:])
	case "make":
		err = makeAll(os.Args[2:])
	default:
		fail(usage)
	}
	if err != nil {
		fail(err)
	}
}

func fail(why any) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}

// pause waits for the end. As the first process of a pod it takes notice of others that end.
func pause() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
				break
			}
		}
	}
}

// serve answers until the pod is told to end.
func serve(args []string) error {
	if len(args) != 1 {
		return errors.New(usage)
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", ":"+args[0])
	if err != nil {
		return err
	}
	datagrams, err := net.ListenPacket("udp", ":"+args[0])
	if err != nil {
		return err
	}
	go answerDatagrams(datagrams, name)
	go server.Accept(listener, name)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	<-ended
	return nil
}

func answerDatagrams(conn net.PacketConn, name string) {
	buffer := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo(fmt.Appendf(nil, "%s %s %s\n", name, from, bytes.TrimSpace(buffer[:n])), from)
	}
}

func dial(url string, within time.Duration) (*client.Conn, error) {
	network, address, found := strings.Cut(url, "://")
	if !found {
		return nil, errors.New(usage)
	}
	conn, err := net.DialTimeout(network, address, within)
	if err != nil {
		return nil, err
	}
	return client.New(conn), nil
}

func askAll(args []string) error {
	flags := flag.NewFlagSet("ask", flag.ExitOnError)
	times := flags.Int("times", 1, "how often each")
	more := flags.Int("more", 0, "how many bytes more than it takes")
	within := flags.Duration("within", client.Attempt, "how long each may take")
	_ = flags.Parse(args)
	for _, url := range flags.Args() {
		for range *times {
			answer, err := askOnce(url, *more, *within)
			if err != nil {
				return fmt.Errorf("%s: %w", url, err)
			}
			fmt.Println(url, answer)
		}
	}
	return nil
}

func askOnce(url string, more int, within time.Duration) (string, error) {
	conn, err := dial(url, within)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.More = more
	return conn.Ask(within)
}

// holdAll never returns but with an error. It says "held" when all connections have answered once, and "lost" when one does not any more.
// An address that does not answer yet is asked again.
func holdAll(urls []string) error {
	var all []*client.Conn
	for _, url := range urls {
		conn, err := awaitAnswer(url)
		if err != nil {
			return fmt.Errorf("lost %s before the first answer: %w", url, err)
		}
		all = append(all, conn)
	}
	who := make([]string, len(all))
	for round := 0; ; round++ {
		for i, conn := range all {
			answer, err := conn.Ask(client.Patience / 2) // a test that waits for answers as long as Patience is to read which is lost
			switch {
			case err != nil:
				return fmt.Errorf("lost %s after %d answers: %w", urls[i], round, err)
			case round == 0:
				who[i] = answer
			case who[i] != answer:
				return fmt.Errorf("lost %s after %d answers: it was %s and is %s", urls[i], round, who[i], answer)
			}
		}
		if round == 0 {
			fmt.Println("held", len(all))
		} else if round%10 == 0 {
			fmt.Println("answers", round)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// makeAll never returns. It says "made" and "failed" with their numbers now and then; an address that has not answered yet does not count.
func makeAll(urls []string) error {
	var ports client.Ports
	for _, url := range urls {
		conn, err := awaitAnswer(url)
		if err != nil {
			return err
		}
		ports.Use(conn, time.Now())
		_ = conn.Close()
	}
	made, failed := 0, 0
	for round := 0; ; round++ {
		for _, url := range urls {
			made++
			if known, err := makeOne(url, &ports); err != nil {
				failed++
				fmt.Println("no answer", time.Now().UTC().Format(time.RFC3339), portsName[known], url, err)
			}
		}
		if round%50 == 0 {
			fmt.Println("made", made, "failed", failed)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// portsName says of a connection without an answer whether its port was another one's just before.
var portsName = map[bool]string{true: client.KnownPort, false: client.NewPort}

// makeOne says whether the port of the connection was known from one before.
func makeOne(url string, ports *client.Ports) (known bool, err error) {
	conn, err := dial(url, client.Attempt)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	known = ports.Use(conn, time.Now())
	_, err = conn.Ask(client.Attempt)
	return known, err
}

// awaitAnswer gives a connection that has answered.
func awaitAnswer(url string) (*client.Conn, error) {
	for deadline := time.Now().Add(client.Patience); ; time.Sleep(time.Second) {
		conn, err := dial(url, client.Attempt)
		if err == nil {
			if _, err = conn.Ask(client.Attempt); err == nil {
				return conn, nil
			}
			_ = conn.Close()
		}
		if time.Now().After(deadline) {
			return nil, err
		}
		fmt.Println("not yet", url, err)
	}
}
