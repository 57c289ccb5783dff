// SPDX-License-Identifier: Apache-2.0

// Package upgrade tests what happens when the agent on a node becomes another one: of the same layout of tables with other
// programs, or of another layout, in both directions and under load; and that cleanup leaves nothing of any of them. The other
// layout is made for the test (layout.sh): fields in another order, rows of other sizes, the agent compiled with its object.
package upgrade

//go:generate ./layout.sh
