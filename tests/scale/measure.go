// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/fakeapi"
	"github.com/nearlb/nearlb/tests/rig"
)

// figures are what was measured of one proxy at one size.
type figures struct {
	change, second []time.Duration // sorted
	failed         int             // connections that got no answer while endpoints changed
	idle           float64         // of a core
	creation       time.Duration   // of processor; 0: not measured
	memory         int64           // bytes
	empty, over    []start
	trouble        string // "": everything fits

	kernelNames, responderNames []time.Duration // until names obeyed; sorted
}

// start is one start: until everything was published.
type start struct{ wall, processor time.Duration }

// course measures one proxy at one size.
type course struct {
	options
	*proxy
	*world
	lab        *lab.Lab
	served     *fakeapi.Running
	kubeconfig string
	process    *lab.Process
	figures    figures
	turn       int // of the watched Services
}

// serve starts an API server with the world's objects on a host outside.
func (c *course) serve(host *lab.Outside) error {
	c.kubeconfig = filepath.Join(c.lab.Dir, c.proxy.name+".kubeconfig")
	var err error
	c.served, err = rig.ServeAPI(c.world.api, host, c.kubeconfig)
	return err
}

// run measures everything.
func (c *course) run() error {
	steps := []struct {
		what string
		do   func() error
	}{
		{"create Services one by one", c.create},
		{"start with empty tables", c.startEmpty},
		{"do nothing", c.rest},
		{"change endpoints", undisturbed(c.changeEndpoints)},
		{"change them again 20 ms later", undisturbed(c.changeAgain)},
		{"start over what it left", c.startOver},
		{"start with names", c.startNames},
		{"change endpoints of names", undisturbed(c.changeNames)},
	}
	for _, s := range steps {
		began := time.Now()
		if err := s.do(); errors.Is(err, errDoesNotFit) {
			break
		} else if err != nil {
			return fmt.Errorf("%s at %s: %s: %w", c.proxy.name, c.world.size, s.what, err)
		}
		c.say("%s, %s: %s: done in %.0f s", c.world.size, c.proxy.name, s.what, time.Since(began).Seconds())
	}
	err := c.stop(true)
	c.served.Close()
	return err
}

// undisturbed keeps this process, which is the API server as well, from collecting its garbage meanwhile: with what it has of 10,000
// Services that takes both of two processors for a fifth of a second, and is nothing that the proxy does.
func undisturbed(do func() error) func() error {
	return func() error {
		runtime.GC()
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
		return do()
	}
}

// launch starts the proxy and waits until everything is published.
func (c *course) launch() (start, error) {
	began := time.Now()
	var err error
	if c.process, err = c.proxy.start(c.kubeconfig); err != nil {
		return start{}, err
	}
	used := sample(c.process.PID())
	at, err := c.await()
	if err != nil {
		close(used.stop)
		return start{}, err
	}
	return start{at.Sub(began), used.usedAt(at)}, nil
}

// await waits until new connections reach what the objects say, and the proxy says that everything is published. It gives the moment.
func (c *course) await() (time.Time, error) {
	want := map[netip.Addr]string{}
	for _, number := range c.watched {
		want[vip(number)] = c.answerer(number)
	}
	at, err := c.prober.allArrive(want, c.proxy.limit)
	if err != nil {
		if c.proxy.name == kubeProxyName { // what it cannot do is a figure, too
			c.figures.trouble = fmt.Sprintf("nothing published within %.0f minutes", c.proxy.limit.Minutes())
			return at, errDoesNotFit
		}
		if _, wrong, ok := c.proxy.published(c.process.PID()); ok && wrong != "" {
			c.figures.trouble = wrong
			return at, errDoesNotFit
		}
		return at, err
	}
	for deadline := time.Now().Add(c.proxy.limit); ; time.Sleep(10 * time.Millisecond) {
		said, wrong, ok := c.proxy.published(c.process.PID())
		if ok {
			c.figures.trouble = wrong
			if said.After(at) {
				at = said
			}
			return at, nil
		}
		if time.Now().After(deadline) {
			return at, fmt.Errorf("it does not say within %s that everything is published", c.proxy.limit)
		}
	}
}

// errDoesNotFit ends the measurements of a size at which some Services cannot be published; the table says why.
var errDoesNotFit = errors.New("not all Services are published")

// stop ends the proxy, and takes what it left.
func (c *course) stop(wipe bool) error {
	if c.process != nil {
		if err := c.proxy.end(c.process); err != nil {
			return err
		}
		c.process = nil
	}
	if wipe {
		return c.proxy.wipe()
	}
	return nil
}

// create makes Services while the proxy runs, at an even pace.
func (c *course) create() error {
	if c.services > c.createUpTo {
		c.world.fill(0)
		return nil
	}
	c.put(0)
	process, err := c.proxy.start(c.kubeconfig)
	if err != nil {
		return err
	}
	c.process = process
	if _, err := c.prober.allArrive(map[netip.Addr]string{vip(0): c.answerer(0)}, c.proxy.limit); err != nil {
		return err
	}
	before, err := processor(process.PID())
	if err != nil {
		return err
	}
	began := time.Now()
	for i := 1; i < c.services; i++ {
		time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(c.rate))))
		c.put(i)
	}
	if _, err := c.await(); err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // what follows a publication is part of its cost
	after, err := processor(process.PID())
	c.figures.creation = after - before
	return err
}

func (c *course) startEmpty() error {
	began := time.Now()
	for i := 0; i < c.starts && (i == 0 || time.Since(began) < c.longest); i++ {
		if err := c.stop(true); err != nil {
			return err
		}
		s, err := c.launch()
		if err != nil {
			return err
		}
		c.figures.empty = append(c.figures.empty, s)
	}
	return nil
}

// startOver changes endpoints while the proxy is away, so that what it left cannot answer for what it publishes.
func (c *course) startOver() error {
	began := time.Now()
	for i := 0; i < c.starts && (i == 0 || time.Since(began) < c.longest); i++ {
		if err := c.stop(false); err != nil {
			return err
		}
		for _, number := range c.watched {
			c.setReady(number, []int{nobody, 0, 1}[i%3])
		}
		s, err := c.launch()
		if err != nil {
			return err
		}
		c.figures.over = append(c.figures.over, s)
	}
	return nil
}

// rest measures what the proxy costs while nothing happens, and its memory after that.
func (c *course) rest() error {
	time.Sleep(settling)
	before, err := processor(c.process.PID())
	if err != nil {
		return err
	}
	began := time.Now()
	time.Sleep(c.idle)
	after, err := processor(c.process.PID())
	if err != nil {
		return err
	}
	c.figures.idle = float64(after-before) / float64(time.Since(began))
	c.figures.memory, err = rig.OwnMemory(c.process.PID())
	return err
}

// settling is how long a proxy has after its start until nothing happens any more.
const settling = 10 * time.Second

// next is the watched Service whose turn it is.
func (c *course) next() int {
	c.turn++
	return c.watched[c.turn%len(c.watched)]
}

// step changes one endpoint of a watched Service, the near ones in turn: the one, none, the other, none.
func (c *course) step(number int) (time.Duration, error) {
	to := nobody
	if c.ready[number] == nobody {
		to = c.turn / len(c.watched) % len(nearServers)
	}
	return c.changeTo(number, to)
}

func (c *course) changeTo(number, to int) (time.Duration, error) {
	want := farServer
	if to != nobody {
		want = nearServers[to]
	}
	return c.prober.arrives(vip(number), want, c.proxy.limit, func() time.Time {
		began := time.Now()
		c.setReady(number, to)
		return began
	})
}

func (c *course) changeEndpoints() error {
	began, failed := time.Now(), c.prober.failed
	for i := 0; i < c.rounds && (i < fewest || time.Since(began) < c.longest); i++ {
		took, err := c.step(c.next())
		if err != nil {
			return err
		}
		c.figures.change = append(c.figures.change, took)
		time.Sleep(c.proxy.rest())
	}
	c.figures.failed = c.prober.failed - failed
	slices.Sort(c.figures.change)
	return nil
}

// fewest is how many changes there are at least, however long they take.
const fewest = 3

// changeAgain has the near endpoint go and the other one come 20 ms later, and measures from then on.
func (c *course) changeAgain() error {
	began := time.Now()
	for i := 0; i < c.rounds && (i < fewest || time.Since(began) < c.longest); i++ {
		number := c.next()
		if c.ready[number] == nobody {
			if _, err := c.changeTo(number, 0); err != nil {
				return err
			}
			time.Sleep(c.proxy.rest())
		}
		other := 1 - c.ready[number]
		took, err := c.prober.arrives(vip(number), nearServers[other], c.proxy.limit, func() time.Time {
			c.setReady(number, nobody)
			time.Sleep(20 * time.Millisecond)
			second := time.Now()
			c.setReady(number, other)
			return second
		})
		if err != nil {
			return err
		}
		c.figures.second = append(c.figures.second, took)
		time.Sleep(c.proxy.rest())
	}
	slices.Sort(c.figures.second)
	return nil
}
