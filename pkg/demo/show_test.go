// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// silent is a report that nobody reads.
type silent struct{ plain }

func (*silent) hold(*demo) {}

// What is shown may end: nobody looks at a demo then, which says why.
func TestTheDemoEndsWithWhatShowsIt(t *testing.T) {
	broken := errors.New("the server ended")
	for _, hold := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), time.Hour)
			defer stop()
			d := &demo{report: &silent{plain{io.Discard}}, options: Options{Hold: hold, Show: func(context.Context, []Node) error { return broken }}}
			d.watch = newWatch(d)
			d.watch.held.Open = 1
			if err := d.run(ctx); !errors.Is(err, broken) || ctx.Err() != nil {
				t.Errorf("held %v: %v, after which %v", hold, err, ctx.Err())
			}
		})
	}
}
