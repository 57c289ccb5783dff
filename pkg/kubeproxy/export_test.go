// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import "time"

// PollOften has traces compared often enough for a test.
func (n *News) PollOften() { n.every = 10 * time.Millisecond }
