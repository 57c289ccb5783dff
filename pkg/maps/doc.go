// SPDX-License-Identifier: Apache-2.0

// Package maps is the typed side of the BPF tables: it publishes decisions in an order that no packet can see half done,
// restores what it knows from live tables, and reads them for people. Byte order lives here and nowhere else in Go.
package maps
