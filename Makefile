# Better Compute appliance. `make help` lists the targets.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
GO          ?= go
TOOL        := $(GO) tool -modfile=.tools.mod
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.0.0-dev)
LDFLAGS     := -s -w -X main.version=$(VERSION)
# The command library's own writer of manuals, which nothing here calls.
TAGS        := urfave_cli_no_docs
# NVML is bound lazily: a toolchain that links with -z now would refuse to start without a driver.
export CGO_LDFLAGS := -Wl,-z,lazy
# NVIDIA's header marks a hundred functions as deprecated that its binding still wraps.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations

.PHONY: help build run test lint bench e2e package fuzz clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/bc; bin/bcd and bin/better-compute are links to it
	$(GO) build -trimpath -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o bin/bc ./cmd/bc
	ln -sf bc bin/bcd
	ln -sf bc bin/better-compute

run: build ## start everything on this machine (DEMO=1: on a recorded 8-GPU machine); changes nothing on the host
	bin/bc up $(if $(DEMO),--demo) $(if $(STATE_DIR),--state-dir $(STATE_DIR))

test: ## everything that needs no special machine: both SQLite drivers, with and without cgo, races
	$(GO) vet ./...
	$(GO) test ./...
	CGO_ENABLED=0 $(GO) test ./agent/... ./cmd/...
	CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/bc
	$(GO) test -tags mattn ./appliance/store/... ./appliance/control/...
	$(GO) test -race ./appliance/store/... ./appliance/control/...

lint: ## gofmt, go vet, staticcheck, floors
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'run gofmt on these'; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags mattn ./...
	$(TOOL) staticcheck ./...
	$(GO) test ./cmd/bc -run 'TestImports|TestPure|TestEveryPackage' -count=1

FUZZTIME ?= 60s
fuzz: ## fuzz every decoder, FUZZTIME (60s) each
	@for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test $$pkg -list '^Fuzz' | grep '^Fuzz' || true); do \
			echo "$$pkg $$target"; $(GO) test $$pkg -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) || exit 1; \
		done; \
	done

package: ## build dist/*.deb and dist/*.rpm
	VERSION=$(VERSION) GO=$(GO) packaging/build

e2e: package ## install the packages on real Debians: containers and a virtual machine (root; docs/e2e.md)
	$(GO) test -tags e2e -count=1 -v -timeout 90m ./packaging/...
	$(GO) test -tags e2e -count=1 -timeout 30m -run 'UnderSystemd|InAMachine' ./agent ./agent/unit ./cmd/bc

bench: package ## measure against the bars of docs/performance.md and print a table (minutes)
	$(GO) test ./appliance/bench -v -count=1 -timeout 60m -bars | grep -E '^(\||---|FAIL|ok|    )'
	$(GO) test ./appliance/plan -run '^$$' -bench 'Place|Memory' -count=1

clean: ## remove what was built
	rm -rf bin dist
