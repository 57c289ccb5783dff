// SPDX-License-Identifier: Apache-2.0

// Package fakeapi is an API server in memory for tests and measurements: it answers reads of the kinds that service proxies read as
// kube-apiserver does. There are plain lists, lists in pages, lists streamed by a watch (sendInitialEvents), watches from a
// version on with bookmarks, 410 for versions that it forgot, label and field selectors, PartialObjectMetadata, JSON and protobuf.
// Events are taken and counted. Objects come from the test, by Put and Delete; nobody is asked who they are.
//
//	api := fakeapi.New(fakeapi.Options{})
//	api.Put(service, slice, node)
//	running := api.Start(listener)                   // TLS and HTTP/2, as clusters have
//	defer running.Close()
//	err := running.WriteKubeconfig(file)             // for agents
//	api.Put(changed)                                 // watches tell of it
//	api.Compact()                                    // watches that go on from before get 410
//	api.BreakWatches()                               // and those that run are cut off
package fakeapi
