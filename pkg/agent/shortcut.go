// SPDX-License-Identifier: Apache-2.0

package agent

// ShortcutMode says when translated packets leave past the host's stack (--shortcut).
type ShortcutMode string

// The modes.
const (
	ShortcutOff ShortcutMode = "off" // never
	ShortcutOn  ShortcutMode = "on"  // always, whatever that passes by
)
