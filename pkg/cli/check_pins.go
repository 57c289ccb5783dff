// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/bpf"
)

// checkPins says whether an agent of this version could use what is pinned.
func checkPins(pinPath string) checkRow {
	tables, err := bpf.OpenMaps(pinPath, true)
	if err == nil {
		err = tables.Close()
	}
	switch {
	case err == nil:
		return checkRow{"pinned tables", good, "under " + pinPath}
	case errors.Is(err, bpf.ErrNoAgent):
		return checkRow{"pinned tables", good, "none yet under " + pinPath}
	case errors.Is(err, bpf.ErrIncompatible):
		return checkRow{"pinned tables", missing, err.Error()}
	}
	return checkRow{"pinned tables", warning, err.Error()}
}

// checkAgent says whether an agent follows changes. None yet is no fault of the machine.
func checkAgent(lockDir, pinPath string, now time.Time) checkRow {
	status, err := agent.ReadStatus(lockDir, pinPath)
	switch {
	case errors.Is(err, agent.ErrNoStatus):
		return checkRow{"agent", good, "none yet for " + pinPath}
	case err != nil:
		return checkRow{"agent", warning, err.Error()}
	case works(status):
		return checkRow{"agent", good, agentText(status, now)}
	}
	return checkRow{"agent", warning, agentText(status, now)}
}
