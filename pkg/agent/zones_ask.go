// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// zonesAtOnce bounds one question, which is a line of a request.
const zonesAtOnce = 100

// AskZones has a running agent tell where connections to Services would go with each setting, by the objects as they are now. Services
// that it does not know are left out.
func AskZones(ctx context.Context, lockDir, pinPath string, services []lb.ServiceName) (all []decide.Outcome, err error) {
	for some := range slices.Chunk(services, zonesAtOnce) {
		query := url.Values{}
		for _, name := range some {
			query.Add("name", name.String())
		}
		err := askAgent(ctx, Socket(lockDir, pinPath), "/zones?"+query.Encode(), askTime, func(d *json.Decoder) error {
			var more []decide.Outcome
			err := d.Decode(&more)
			all = append(all, more...)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// answerZones decides about Services as they are and as settings would make them.
func (d *daemon) answerZones(w http.ResponseWriter, ask *http.Request) {
	names := ask.URL.Query()["name"]
	if len(names) > zonesAtOnce {
		http.Error(w, "too many names", http.StatusBadRequest)
		return
	}
	all := []decide.Outcome{}
	source, can := d.source.(watch.Looker)
	for _, text := range names {
		var name lb.ServiceName
		if err := name.UnmarshalText([]byte(text)); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !can {
			continue
		}
		if in, known := source.Look(name); known {
			all = append(all, decide.Outcomes(in, d.now.Load().node())...)
		}
	}
	out := newLines(w)
	out.write(all)
	_ = out.flush() // the client went away
}
