// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"strings"
)

// checkHandover looks for rules of kube-proxy in this network namespace, and says what to do about them.
func checkHandover(ctx context.Context, pins *pinFlags, lockDir string) []checkRow {
	const subject = "kube-proxy"
	state, err := readHandover(ctx, pins, lockDir)
	if err != nil {
		return []checkRow{{subject, warning, "its rules cannot be read: " + err.Error()}}
	}
	var rows []checkRow
	k := state.KubeProxy
	if len(k.found.Hidden) > 0 {
		rows = append(rows, checkRow{subject, warning, "whether it has rules in legacy iptables cannot be read (wants CAP_NET_RAW): " + strings.Join(k.found.Hidden, ", ")})
	}
	switch {
	case len(k.Rules) > 0 && (state.Draining || state.Proxy != ""):
		rows = append(rows, checkRow{subject, good, "its rules are here: " + strings.Join(k.Rules, ", ")})
	case len(k.Rules) > 0:
		rows = append(rows, checkRow{subject, warning, "its rules are here (" + strings.Join(k.Rules, ", ") + "). " + state.Next[0].Brief})
	case len(rows) == 0:
		rows = append(rows, checkRow{subject, good, "no rules of it"})
	}
	if state.Draining {
		rows = append(rows, checkRow{"hand-over", warning, "new connections are left to kube-proxy. " + state.Next[0].Brief})
	}
	return rows
}
