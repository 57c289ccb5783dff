// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// AskAnnotations has a running agent tell which of nearlb's annotations are in force, and which have no effect, by the objects as they are
// now. Services without any are left out.
func AskAnnotations(ctx context.Context, lockDir, pinPath string) (all []lb.ServiceAnnotations, err error) {
	return all, askAgent(ctx, Socket(lockDir, pinPath), "/annotations", askTime, func(d *json.Decoder) error { return d.Decode(&all) })
}

func (d *daemon) answerAnnotations(w http.ResponseWriter, _ *http.Request) {
	all := []lb.ServiceAnnotations{}
	if source, can := d.source.(watch.Looker); can {
		all = source.Annotated()
	}
	out := newLines(w)
	out.write(all)
	_ = out.flush() // the client went away
}
