# SPDX-License-Identifier: Apache-2.0
# `make` prints what there is.

GO       ?= go
BIN      := bin/nearlb
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
TIMEOUT  ?= 40m
FUZZTIME ?= 30s

# TAGS=image leaves out demo and bench, which no node needs.
TAGS     ?=

# The worlds that properties are held against: the same for the same code, so that a failure is of the change it is found in. 0: others each time.
SEED     ?= 1
export RAPID_SEED = $(SEED)

# All is compiled as the program is, so that what a fresh machine compiles for one target serves the next; agents in tests drop capabilities, too.
# Compilers do not write what debuggers read: nothing links it (-s -w), and it takes a tenth of their time.
export CGO_ENABLED = 0
BUILDFLAGS := -trimpath -gcflags=all=-dwarf=false
export GOFLAGS := $(filter-out $(BUILDFLAGS),$(GOFLAGS)) $(BUILDFLAGS)

# What building the BPF objects and running every test wants from Debian; the program itself needs none of it.
PACKAGES := clang-19 llvm-19 clang-format-19 libbpf-dev linux-libc-dev gcc libc6-dev iproute2 nftables iptables shellcheck

# The modules beside nearlb's own: their tests need what its users do not.
MODULES := tests/oracle tests/dnsoracle tests/cluster tests/manifests tests/monitoring

# What booting other kernels wants beside: the kernels themselves are downloaded, not installed.
KERNEL_PACKAGES := qemu-system-x86 nftables xz-utils

# Where Debian has the CNI plugins.
CNI := /usr/lib/cni

.PHONY: help build plugin release picture reference demo image kube-up kube-down kube-smoke kube-handover kube-helm kube-packages cni soak e2e ui-test dashboard-schema gate test test-kernels oracle dns-oracle bench-dns bench-pair bench-paths cluster manifests monitoring bench scale churn generate verify lint fuzz packages clean root failover

help: ## print these targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/nearlb (needs Go alone: BPF objects are committed)
	$(GO) build $(if $(TAGS),-tags $(TAGS)) -ldflags "-s -w -X github.com/nearlb/nearlb/pkg/cli.version=$(VERSION)" -o $(BIN) ./cmd/nearlb

# Where a release's archives will be, and its image.
PLUGIN_URL ?= https://github.com/nearlb/nearlb/releases/download/$(VERSION)
IMAGE      ?= ghcr.io/nearlb/nearlb

plugin: ## make bin/plugin: kubectl-nearlb for each platform, their sums and the manifest for krew (PLUGIN_URL: where they will be)
	$(GO) run ./tests/release/make -plugin -version $(VERSION) -url $(PLUGIN_URL) -out bin/plugin

release: ## make bin/release of a tagged commit: archives, images, chart, manifests, what is in them, sums, krew's manifest (VERSION=v1.2.3 IMAGE=...); docs/release.md
	$(GO) run ./tests/release/make -version $(VERSION) -url $(PLUGIN_URL) -image $(IMAGE) -out bin/release

questions: build root ## plant faults in a small cluster and write what nearlb answers to docs/questions.md (about two minutes)
	$(GO) run ./tests/questions -nearlb ./$(BIN) -out docs/questions.md

picture: build root ## draw README's picture from a run of the demo (about 40 s): docs/demo-light.svg and docs/demo-dark.svg
	$(GO) run ./tests/picture -nearlb ./$(BIN) -out docs

reference: ## write docs/reference.md from the commands and the table of metrics
	NEARLB_UPDATE=1 $(GO) test -count=1 -run PageOfReference ./pkg/cli

demo: build root ## a small cluster on this machine: watch traffic follow the endpoints (about 40 s)
	./$(BIN) demo $(DEMOFLAGS)

image: ## make bin/nearlb.tar, the image that manifests/Dockerfile makes, without an engine
	$(MAKE) build BIN=bin/image/nearlb TAGS=image
	cd tests/cluster && $(GO) run ./image/nearlb -dockerfile ../../manifests/Dockerfile -program ../../bin/image/nearlb -version $(VERSION) -out ../../$(BIN).tar

kube-up: root kube-packages image ## a real Kubernetes cluster on this machine: three nodes with kubelet and containerd, which have the image (the first time builds Kubernetes, minutes)
	cd tests/cluster && $(GO) build -o ../../bin/kubecluster ./kubecluster
	bin/kubecluster up $(BIN).tar

kube-down: root ## end it; nothing of it is left
	cd tests/cluster && $(GO) build -o ../../bin/kubecluster ./kubecluster
	bin/kubecluster down

kube-smoke: root kube-packages ## install nearlb on such a cluster, hold connections while it is updated and kubelets restart, remove it (three minutes)
	cd tests/cluster && NEARLB_KUBE=1 NEARLB_REQUIRE_PRIVILEGED=1 $(GO) test -count=1 -v -timeout $(TIMEOUT) ./kube

cni: root kube-packages ## the same beside each network of the reference CNI plugins and of flannel (five minutes; NETWORKS=bridge): writes docs/cni.md, unless NETWORKS says which; or beside the one that a directory describes (FROM=DIR)
	cd tests/cluster && NEARLB_REQUIRE_PRIVILEGED=1 $(if $(FROM),NEARLB_CNI_FROM='$(abspath $(FROM))',NEARLB_CNI=1) \
		NETWORKS='$(NETWORKS)' NEARLB_CNI_OUT=$(if $(NETWORKS),,$(abspath docs/cni.md)) NEARLB_CNI_VERSION=$(VERSION) \
		$(GO) test -count=1 -v -timeout $(TIMEOUT) -run 'EveryNetwork|NetworkThatIsGiven' ./kube

kube-handover: root kube-packages ## hand such a cluster over from kube-proxy's DaemonSet by the commands of docs/install.md, under load (two minutes)
	@tests/packages.sh nftables conntrack
	cd tests/cluster && NEARLB_HANDOVER=1 NEARLB_REQUIRE_PRIVILEGED=1 $(GO) test -count=1 -v -timeout $(TIMEOUT) -run HandsItsClusterOver ./kube

kube-helm: root kube-packages ## install the chart on such a cluster by Helm itself, upgrade it, roll it back and remove it (two minutes; the first time builds Helm)
	cd tests/cluster && NEARLB_HELM=1 NEARLB_REQUIRE_PRIVILEGED=1 $(GO) test -count=1 -v -timeout $(TIMEOUT) -run TheChartIs ./kube

soak: root kube-packages ## a day in minutes on such a cluster (TIME=30m): what changes, dies and comes back loses no connection and leaves nothing
	cd tests/cluster && NEARLB_SOAK=$(or $(TIME),30m) NEARLB_REQUIRE_PRIVILEGED=1 $(GO) test -count=1 -v -timeout 6h -run ADayInMinutes ./kube

# Which of Kubernetes' own tests run: E2E is an expression for their names.
E2E_PACKAGES := curl wget netcat-openbsd bind9-dnsutils iproute2 nftables conntrack

e2e: root kube-packages ## Kubernetes' own network tests, unmodified, with kube-proxy and with nearlb (half an hour to an hour and a half; TIMES=3, PROXIES=nearlb, PROCS=6 tests at once): writes docs/conformance.md; with E2E='Services should serve', bin/e2e/conformance.md or OUT
	@tests/packages.sh $(E2E_PACKAGES); command -v busybox >/dev/null || tests/packages.sh busybox-static
	cd tests/cluster/e2e && $(GO) run ./run -dir ../../../bin/e2e -out $(abspath $(or $(OUT),$(if $(E2E),bin/e2e,docs)/conformance.md)) -version $(VERSION) \
		$(if $(E2E),-focus '$(E2E)') $(if $(TIMES),-times $(TIMES)) $(if $(PROXIES),-proxies $(PROXIES)) $(if $(PROCS),-procs $(PROCS))

# What a machine has from elsewhere, it keeps: Debian's containerd would have apt remove Docker's.
kube-packages:
	@command -v apt-get >/dev/null || exit 0; \
	command -v containerd >/dev/null || set -- containerd; \
	command -v runc >/dev/null || set -- "$$@" runc; \
	test -x $(CNI)/ptp || set -- "$$@" containernetworking-plugins; \
	tests/packages.sh "$$@"

test: root packages kube-packages ## install what is missing, then run every test, the privileged ones included (SEED=0: other random worlds); says how long it takes
	$(GO) run ./tests/gate -behaviour

gate: root kube-packages ## what a change has to pass: test, verify, lint and test-kernels, side by side, with a budget for each suite
	@tests/packages.sh $(PACKAGES) $(KERNEL_PACKAGES)
	$(GO) run ./tests/gate

oracle: ## compare decisions with kube-proxy's own code; WORLDS=N for another number of worlds than 2 x 50000, SEED=0 for others
	cd tests/oracle && $(GO) test -count=1 -timeout $(TIMEOUT) . $(if $(WORLDS),-rapid.checks=$(WORLDS))

dns-oracle: ## compare answers to names with CoreDNS's; WORLDS=N for another number of clusters than 500, SEED=0 for others
	cd tests/dnsoracle && $(GO) test -count=1 -timeout $(TIMEOUT) . -rapid.checks=$(or $(WORLDS),500)

bench-dns: root ## measure answers to names beside CoreDNS's in one run, in memory and over sockets, those of the kernel, and what a pod waits
	cd tests/dnsoracle && $(GO) test -run=- -bench=. -count=5 .
	$(GO) test -run=- -bench=AQuestionInTheKernel -benchtime=100000x -count=5 ./tests/packet
	$(GO) test -run=- -bench=APodsQuestion -benchtime=30000x ./tests/faults

cluster: root packages ## agents on a real control plane: real API server and controllers over etcd (the first time builds them, minutes)
	cd tests/cluster && $(GO) list -export -deps ./kubernetes >/dev/null # compiled outside of the tests' time
	cd tests/cluster && NEARLB_REQUIRE_PRIVILEGED=1 $(GO) test -count=1 -timeout $(TIMEOUT) ./...

manifests: ## render every way to install, hold them together, build the image's program for each architecture
	cd tests/manifests && $(GO) test -count=1 -timeout $(TIMEOUT) ./...

test-kernels: root ## boot Debian's Linux 6.1 and 6.12 under qemu and run the packet tables and real sockets there (minutes)
	@tests/packages.sh $(KERNEL_PACKAGES)
	$(GO) run ./tests/kernels

monitoring: root ## hold dashboard, alerts and table of metrics to what real agents tell, with Prometheus' own engine
	cd tests/monitoring && NEARLB_REQUIRE_PRIVILEGED=1 $(GO) test -count=1 -timeout $(TIMEOUT) ./...

ui-test: ## look at the page of nearlb ui in a headless Chromium, which it installs (a minute; PICTURES=DIR keeps pictures)
	@tests/packages.sh chromium fonts-dejavu-core
	NEARLB_UI=1 NEARLB_UI_PICTURES=$(PICTURES) $(GO) test -count=1 -timeout 10m ./tests/ui

dashboard-schema: ## hold the dashboard to the schema of Grafana 12, with npm's package of its types (half a minute; GRAFANA=12.1.0)
	tests/monitoring/schema.sh manifests/monitoring/dashboard.json $(or $(GRAFANA),12.0.0)

bench: build root ## measure the datapath in the kernel and write docs/performance.md's table (ten minutes)
	tests/bench.sh ./$(BIN) docs/performance.md
	NEARLB_UPDATE=1 $(GO) test -count=1 -run READMEsFigures ./tests/structure

bench-pair: build root ## measure the datapath beside OLD's, a commit or a nearlb binary, by turns in one run (ROUNDS=5): what became slower comes first
	@GO=$(GO) tests/bench-pair.sh ./$(BIN) '$(OLD)' $(or $(ROUNDS),5)

# Multi-call program of tests/cluster, whose first argument is kube-proxy; KUBERNETES= leaves that out.
KUBERNETES ?= $(wildcard $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/nearlb-test/kubernetes)

bench-paths: root ## connections a second, bulk and questions a second of clients off the node and of pods, and 96,000 connections that one pod keeps, backend here and on another node by each way of --off-node, beside kube-proxy if make cluster built it, interleaved (ten minutes; LASTS=10s each, ROUNDS=3; NEARLB_BENCH_XDP=native or, over the same links, off): writes docs/performance.md's tables; fails on errors alone
	@GO=$(GO) tests/bench-paths.sh docs/performance.md '$(if $(LASTS)$(ROUNDS),,paths)' '$(KUBERNETES)' $(or $(LASTS),5s) $(or $(ROUNDS),3) $(TIMEOUT)

endure: root ## clients off the node that connect as fast as they can by each way of --off-node while agents are killed, restarted and ways change: LASTS=10m each (half an hour); fails on an error, and on memory that grows
	NEARLB_ENDURE=$(or $(LASTS),10m) NEARLB_REQUIRE_PRIVILEGED=1 $(GO) test -count=1 -v -timeout 3h -run TestFullRateFor ./tests/hosts

failover: build root ## kill backends and nodes under streams of connections, beside kube-proxy if make cluster built it, and write docs/failover.md (ten minutes; SCENES=node prints that alone)
	$(GO) run ./tests/failover -nearlb ./$(BIN) -version $(VERSION) $(if $(KUBERNETES),-kube-proxy '$(KUBERNETES)') $(if $(SCENES),-scenes '$(SCENES)',$(if $(KUBERNETES),-out docs))

scale: build root ## measure what the agent costs at many Services, beside kube-proxy if make cluster built it, and write docs/performance.md's table (SIZES=1000x10,10000x10 ROUNDS=100; KUBERNETES= without it)
	@GO=$(GO) tests/scale.sh ./$(BIN) docs/performance.md '$(if $(SIZES)$(ROUNDS),,scale)' $(if $(SIZES),-sizes $(SIZES)) $(if $(ROUNDS),-rounds $(ROUNDS))
	@NEARLB_UPDATE=1 $(GO) test -count=1 -run READMEsFigures ./tests/structure

churn: build root ## CHURN=10000 changes at 1,000 Services (rolling updates, Services and types that come and go, relists): fails if memory, descriptors or tables grow, and writes docs/performance.md's table (four minutes)
	@GO=$(GO) KUBERNETES= tests/scale.sh ./$(BIN) docs/performance.md '$(if $(SIZES)$(CHURN),,churn)' -sizes $(or $(SIZES),1000x10) -churn $(or $(CHURN),10000)

generate: packages ## compile the BPF programs and write the Go side of their types
	$(GO) generate ./...

verify: generate ## fail when a generated file or go.mod is not fresh
	for module in . $(MODULES); do (cd $$module && $(GO) mod tidy -diff) || exit 1; done
	@test -z "$$(git status --porcelain -- pkg bpf tests)" || { git status --porcelain -- pkg bpf tests; echo "generated files are not fresh: run make generate and commit"; exit 1; }

lint: packages ## formatting, vet, staticcheck, shellcheck
	@unformatted=$$(gofmt -l cmd pkg tests); test -z "$$unformatted" || { echo "gofmt -w $$unformatted"; exit 1; }
	clang-format-19 --dry-run --Werror bpf/*.c bpf/lib/*.h
	for module in . $(MODULES); do $(GO) run ./tests/vet -C $$module ./... || exit 1; done
	$(GO) tool staticcheck ./...
	shellcheck .ci/run tests/*.sh tests/monitoring/*.sh

fuzz: root ## hold the properties against other worlds, and run every fuzz target for FUZZTIME each
	tests/fuzz.sh $(FUZZTIME)

packages:
	@tests/packages.sh $(PACKAGES)

root:
	@test "$$(id -u)" = 0 || { echo "this target loads BPF programs and makes network namespaces: run it as root"; exit 1; }

clean: ## remove what was built
	rm -rf bin
