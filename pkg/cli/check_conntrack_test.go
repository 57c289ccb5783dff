// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/kubeproxy"
	"github.com/nearlb/nearlb/pkg/maps"
)

func TestCheckSaysThatConnectionTrackingCannotBeAskedAndWhatFollows(t *testing.T) {
	unknown, translates := errors.New("the module nf_conntrack is not loaded"), kubeproxy.Rules{NAT: true}
	for name, c := range map[string]struct {
		rules   kubeproxy.Rules
		unknown error
		result  result
		says    []string
	}{
		"asked":             {translates, nil, good, []string{"can be asked"}},
		"nobody translates": {kubeproxy.Rules{}, unknown, good, []string{"cannot be asked", "translates no connections", "nf_conntrack is not loaded"}},
		"a masquerade":      {translates, unknown, warning, []string{"cannot be asked", "nf_conntrack is not loaded", "whose answers go to that client", "masquerade to :1024-60999", "SYS_ADMIN"}},
	} {
		row := conntrackRow(c.rules, c.unknown, maps.DefaultSNATPorts())
		if row.Result != c.result {
			t.Errorf("%s: %+v, want %s", name, row, c.result)
		}
		for _, text := range c.says {
			if !strings.Contains(row.Detail, text) {
				t.Errorf("%s: %q does not say %q", name, row.Detail, text)
			}
		}
	}
}
