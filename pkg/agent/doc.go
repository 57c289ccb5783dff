// SPDX-License-Identifier: Apache-2.0

// Package agent is the daemon of a node: it follows objects, decides, publishes, keeps programs attached, and says how it
// goes (status file, health, metrics).
//
// Each piece of state has one owner, which alone closes or replaces it. From the longest-lived on:
//
//   - daemon (daemon.go) lasts as long as the process, and has what needs no particular tables: the source, the servers, the metrics, the
//     responder (names.go), the loader (loader.go), and what became of tables that grew (grow.go).
//   - diary (diary.go) is the daemon's notebook: what the agent could not do, when it last had published everything, what audits
//     found. Everybody writes to it.
//   - running (running.go) works with one set of tables, which daemon.start opens and running.close closes: programs, tables, what is
//     attached, connections that are carried over. Larger tables have a running of their own, which comes in place of the one
//     before (daemon.work).
//   - loop (loop.go, publish.go) is the one goroutine that publishes to these tables. Its own are the queue, and what it has to do.
//   - progress (progress.go) is how far the loop is with each Service. The loop alone changes it; status, health and metrics ask.
//
// What people are told is made of these when somebody asks: facts (facts.go) and progress give Status (status.go), which reporter
// (report.go) writes to the file, and metrics.State, which a scrape gets.
package agent
