// SPDX-License-Identifier: Apache-2.0

// Package dnsoracle compares nearlb's answers to questions about names with CoreDNS's: random clusters are served by an API server to
// CoreDNS's kubernetes plugin behind CoreDNS's own server, and are read by nearlb from a file, as `nearlb dns serve` does. Names that
// exist, names that nearly do and names of others are asked for with all types, and whole messages are compared.
// Differences that are meant are in differences_test.go, each with its reason; any other is a bug.
//
// It is a module of its own, so that nearlb does not depend on CoreDNS. -rapid.checks=N sets the number of clusters, -rapid.seed=N
// repeats what a failure printed. BenchmarkAnswers measures both.
package dnsoracle
