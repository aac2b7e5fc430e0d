# libprefixcache: the two commands are `make run` and `make test`; `make help` lists the rest.

# make's lists, cgo's flags and the commands below are words between spaces.
ifneq ($(words $(CURDIR)),1)
$(error $(CURDIR) has a space in its path, expected a folder without one)
endif

SHELL := /bin/bash
ROOT := $(CURDIR)
BUILD := build
LIB := $(BUILD)/libprefixcache.so
SOVERSION := 0
GO ?= go
PYTHON ?= $(shell cat $(BUILD)/python 2>/dev/null || echo python3)
# Trace for `make run`; empty means one that the project generates itself.
TRACE ?=
RUN_ARGS ?=

GO_SOURCES := $(shell find capi core gpu -name '*.go' -o -name '*.s' -o -name '*.c' -o -name '*.h' 2>/dev/null) \
	include/prefixcache.h capi/libprefixcache.map go.mod go.sum

# The CUDA header and the libcuda trampolines: -lcuda and cuda.h without a toolkit.
include gpu/cuda/cuda.mk

GO_LDFLAGS := -s -w -extldflags '-Wl,-soname,libprefixcache.so.$(SOVERSION) \
	-Wl,--version-script=$(ROOT)/capi/libprefixcache.map -Wl,-z,now -Wl,-z,relro -Wl,--no-undefined'

.DEFAULT_GOAL := all
.PHONY: all help setup run test soak mutation fuzz hosts bench load wheel lint coverage abi-snapshot clean

all: $(LIB) ## build build/libprefixcache.so

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: ## install what is missing (needs root for Debian packages), or name it exactly
	@scripts/setup.sh

$(BUILD)/python: scripts/setup.sh
	@scripts/setup.sh run

$(BUILD)/test-tools: scripts/setup.sh
	@scripts/setup.sh test

$(LIB): $(GO_SOURCES) $(CUDA_STUB)
	@mkdir -p $(BUILD)
	$(GO) build -buildmode=c-shared -trimpath -buildvcs=false -ldflags "$(GO_LDFLAGS)" -o $@ ./capi
	@rm -f $(BUILD)/libprefixcache.h
	@ln -sf libprefixcache.so $(BUILD)/libprefixcache.so.$(SOVERSION)

# The replay and the benchmark of the context cache: C++ hosts that load the library.
$(BUILD)/%_context: cpp_tests/%_context.cpp cpp_tests/trace.hpp include/prefixcache.h $(wildcard include/prefixcache/*.hpp)
	@mkdir -p $(BUILD)
	$(CXX) -std=c++17 -O2 -Wall -Wextra -Iinclude $< -ldl -o $@

LOADS := $(BUILD)/load_context $(BUILD)/load_omni
$(LOADS): $(BUILD)/%: cpp_tests/%.cpp cpp_tests/load.hpp cpp_tests/trace.hpp include/prefixcache.h $(wildcard include/prefixcache/*.hpp)
	@mkdir -p $(BUILD)
	$(CXX) -std=c++17 -O2 -Wall -Wextra -Iinclude $< -ldl -o $@

run: $(BUILD)/python $(LIB) $(BUILD)/replay_context ## replay a trace and check every row (TRACE=file.jsonl, RUN_ARGS=..., CONTEXT_ARGS=...)
	@TRACE='$(TRACE)' CONTEXT_ARGS="$(CONTEXT_ARGS)" scripts/run.sh $(RUN_ARGS)

test: $(BUILD)/test-tools $(LIB) $(CUDA_SIM) ## all tests: Go, Python, C++
	@$(PYTHON) scripts/run_tests.py

soak: $(BUILD)/test-tools $(LIB) $(CUDA_SIM) ## the random tests with ever more seeds (MINUTES=30)
	@scripts/soak.sh $(or $(MINUTES),30)

mutation: $(BUILD)/python $(CUDA_STUB) $(CUDA_SIM) ## take each guard out of the code and see that a test notices (docs/simulation.md)
	@$(PYTHON) scripts/mutation.py --write

fuzz: $(BUILD)/test-tools $(CUDA_STUB) ## coverage-guided fuzzing of the C ABI, from C and from Go (MINUTES=10)
	@scripts/fuzz.sh $(or $(MINUTES),10)

hosts: $(BUILD)/test-tools $(LIB) ## the library in hosts of many kinds, for longer than in the tests
	@scripts/hosts.sh

bench: $(BUILD)/python $(LIB) $(BUILD)/bench_context ## the speed figures, as ratios taken in one run (TRACE=file.jsonl)
	@TRACE="$(TRACE)" scripts/bench.sh

load: $(LIB) $(LOADS) ## both caches under load: latencies, and memory against docs/sizing.md (LOAD_ARGS="--operations 1000000")
	@for program in $(LOADS); do echo "== $$program"; PREFIXCACHE_LIBRARY=$(ROOT)/$(LIB) $$program $(LOAD_ARGS) || exit 1; done

wheel: $(LIB) ## dist/prefixcache-*.whl, with the library inside; any Python from 3.11 on
	@scripts/wheel.sh

include gpu/check/check.mk

lint: $(BUILD)/python ## gofmt, vet, staticcheck, clang-format, ruff (pinned versions)
	@scripts/lint.sh

coverage: $(BUILD)/test-tools ## the tests of core, and which statements they do not reach
	@$(PYTHON) scripts/run_tests.py --only go-core
	@$(PYTHON) gates/coverage.py $(BUILD)/test/core.cover --uncovered

abi-snapshot: ## take what include/prefixcache.h promises now as the ABI that `make test` holds it to
	@python3 gates/abi_snapshot.py snapshot

clean: ## remove build/
	rm -rf $(BUILD)
