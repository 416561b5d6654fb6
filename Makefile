# SPDX-License-Identifier: Apache-2.0
#
# Everything a developer or CI runs. Each target does its own set-up: what is downloaded or built once is kept in
# .cache/ (ignored by git), missing Debian tools are installed when root (scripts/install-tools), and pinned versions
# stand in go.mod files: tools/ (generators), tools/lint/ (linter), test/kubernetes/ (etcd and Kubernetes).

SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

CACHE := $(CURDIR)/.cache
TOOLS := $(CACHE)/bin
export PATH := $(TOOLS):$(PATH):/usr/sbin:/sbin

# The version of a binary is what the go command stamps from git. Where git cannot tell (no git, a foreign owner, a
# tarball), the build goes on without instead of failing.
BUILDVCS := $(shell git -C '$(CURDIR)' status --porcelain >/dev/null 2>&1 && echo true || echo false)

# A file named after the content of the pins: what was built from them is rebuilt when they change, and only then
# (time stamps would say nothing after a clone or a restored cache).
pin = $(CACHE)/pins/$(1)-$(shell cat $(2)/go.mod $(2)/go.sum | sha256sum | cut -c1-16)
KUBERNETES_PIN := $(call pin,kubernetes,test/kubernetes)
GENERATE_PIN   := $(call pin,generate,tools)
LINT_PIN       := $(call pin,lint,tools/lint)

##@ Use

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: ## Build the binaries into bin/
	CGO_ENABLED=0 go build -trimpath -buildvcs=$(BUILDVCS) -o bin/ ./cmd/...

.PHONY: demo
demo: build ## See it work: private network namespaces, real packets, under a minute
	@scripts/install-tools demo
	go run ./examples/demo

##@ Check

# The tests that need the programs of bin/ and Kubernetes' own.
END_TO_END := ./test/e2e ./backends/nat/truth

.PHONY: test
test: kubernetes test-unit test-e2e ## Run every test: unit and golden (race detector), kernel, end-to-end on a real API server

# -parallel: the end-to-end tests mostly wait.
# -count=1: the go command cannot see the scripts, programs and kernel that these tests run, so it must not reuse a result.
.PHONY: test-unit
test-unit: build ## Run the tests of the packages with the race detector, those in network namespaces too
	@scripts/install-tools test
	go test -race -count=1 -timeout=15m $$(go list ./... | grep -v $(addprefix -e ,$(END_TO_END:.%='%$$')))

.PHONY: test-e2e
test-e2e: build kubernetes ## Run the end-to-end tests: the real binaries on a real etcd, API server and EndpointSlice controller
	@scripts/install-tools test
	go test -count=1 -p=1 -parallel=6 -timeout=20m $(END_TO_END)

.PHONY: test-e2e-race
test-e2e-race: kubernetes ## The end-to-end tests with binaries built with the race detector (slower; not part of `make test`)
	@scripts/install-tools test
	go build -race -buildvcs=false -o $(CACHE)/race/ ./cmd/...
	KPNG_BIN=$(CACHE)/race GORACE=halt_on_error=1 go test -count=1 -p=1 -parallel=6 -timeout=30m $(END_TO_END)

.PHONY: lint
lint: $(TOOLS)/golangci-lint ## Run the linters: Go, formatting, shell scripts
	@scripts/install-tools lint
	GOLANGCI_LINT_CACHE=$(CACHE)/golangci-lint golangci-lint run ./...
	@scripts/lint-shell

.PHONY: fmt
fmt: $(TOOLS)/golangci-lint ## Format the Go files
	golangci-lint fmt ./...

# BENCH_DATAPLANE=-large adds larger sizes, and minutes.
.PHONY: bench
bench: build kubernetes ## Run the benchmarks: of the packages, of the real binaries on a real API server, of kpng-nat beside kube-proxy (docs/performance.md)
	@scripts/install-tools test
	go test -run='^$$' -bench=. -benchmem $$(go list ./... | grep -v $(addprefix -e ,$(END_TO_END:.%='%$$')) -e '/test/bench$$')
	go run ./test/bench
	go run ./test/bench/dataplane -kpng=bin $(BENCH_DATAPLANE)

##@ Make

.PHONY: image
image: ## Build container images into dist/ (OCI, several architectures, no Docker needed)
	go run ./scripts/image

.PHONY: generate
generate: generators ## Generate the Go code of the .proto files
	buf generate

.PHONY: check-generate
check-generate: generators ## Fail when the generated code is not what `make generate` writes
	@rm -rf $(CACHE)/generated && mkdir -p $(CACHE)/generated
	@buf generate -o $(CACHE)/generated
	@cd $(CACHE)/generated && find . -type f | sort | while read -r f; do \
	  cmp "$$f" "$(CURDIR)/$$f" || { echo "$$f is out of date: run 'make generate' and commit" >&2; exit 1; }; done
	@echo "generated code is up to date"

##@ Set up (the targets above do it themselves)

.PHONY: tools
tools: generators kubernetes $(TOOLS)/golangci-lint ## Build all pinned tools into .cache/bin, install missing Debian packages
	@scripts/install-tools demo test lint

.PHONY: generators
generators: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc ## Build the code generators

.PHONY: kubernetes
kubernetes: $(addprefix $(TOOLS)/,etcd kube-apiserver kube-controller-manager kube-proxy kubectl) ## Build etcd, kube-apiserver, kube-controller-manager, kube-proxy and kubectl (5 minutes once)

.PHONY: clean
clean: ## Remove what was built here; .cache/ stays
	rm -rf bin dist

$(KUBERNETES_PIN) $(GENERATE_PIN) $(LINT_PIN):
	@mkdir -p $(@D) && rm -f $(CACHE)/pins/$(firstword $(subst -, ,$(@F)))-* && touch $@

$(TOOLS)/buf: $(GENERATE_PIN)
	cd tools && GOBIN=$(TOOLS) go install -trimpath github.com/bufbuild/buf/cmd/buf
$(TOOLS)/protoc-gen-go: $(GENERATE_PIN)
	cd tools && GOBIN=$(TOOLS) go install -trimpath google.golang.org/protobuf/cmd/protoc-gen-go
$(TOOLS)/protoc-gen-go-grpc: $(GENERATE_PIN)
	cd tools && GOBIN=$(TOOLS) go install -trimpath google.golang.org/grpc/cmd/protoc-gen-go-grpc
$(TOOLS)/golangci-lint: $(LINT_PIN)
	cd tools/lint && GOBIN=$(TOOLS) go install -trimpath -ldflags='-s -w' github.com/golangci/golangci-lint/v2/cmd/golangci-lint

# The version that the API server reports, read from the pins so that there is one place to change it.
KUBERNETES_VERSION = $(shell awk '$$1 == "k8s.io/kubernetes" {print $$2; exit}' test/kubernetes/go.mod)
VERSION_PKG := k8s.io/component-base/version
KUBERNETES_LDFLAGS = -s -w -X $(VERSION_PKG).gitVersion=$(KUBERNETES_VERSION) -X $(VERSION_PKG).gitTreeState=clean \
  -X $(VERSION_PKG).gitMajor=$(word 1,$(subst ., ,$(KUBERNETES_VERSION:v%=%))) -X $(VERSION_PKG).gitMinor=$(word 2,$(subst ., ,$(KUBERNETES_VERSION:v%=%)))

$(TOOLS)/etcd: $(KUBERNETES_PIN)
	cd test/kubernetes && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $@ go.etcd.io/etcd/server/v3
$(TOOLS)/kube%: $(KUBERNETES_PIN)
	cd test/kubernetes && CGO_ENABLED=0 go build -trimpath -ldflags '$(KUBERNETES_LDFLAGS)' -o $@ k8s.io/kubernetes/cmd/kube$*
