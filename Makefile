# The main commands. `make demo` and `make test` work on a fresh Debian 12 or Ubuntu 24.04.
.PHONY: help build demo fleet test test-gpu test-deploy test-k8s bench lint asan tsan fuzz clean
.DEFAULT_GOAL := help

# Some tests wait most of the time, so run one more at once than there are cores.
JOBS ?= $(shell expr $$(nproc) + 1)
FUZZ_SECONDS ?= 60

help:  ## Show this.
	@sed -n 's/^\([a-z8 -]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

build:  ## Install what is missing, build the programs into build/release/bin/.
	@tools/install-deps
	@tools/build release worker-orcd orcdctl orcd-inspect make-model

demo:  ## Build, fetch a model, start a worker, stream a haiku, stop.
	@tools/install-deps
	@tools/demo

fleet:  ## Two workers and smg in front: chat, spread, kill one, start it again.
	@tools/install-deps
	@tools/build release worker-orcd
	@tools/fleet

test:  ## Build, fetch the model and run every test.
	@tools/install-deps deploy
	@tools/build release
	@tools/fetch-model > /dev/null
	@test -n "$$ORCD_ORACLE_DIR" || echo "ORCD_ORACLE_DIR is not set: tests against outside results are skipped"
	@ctest --preset release --output-on-failure -j $(JOBS)
	@tools/ci/skipped-tests release

test-gpu:  ## Build and run the GPU tests; they fail where there is no GPU.
	@tools/install-deps
	@tools/gpu-tests

test-deploy:  ## Check deploy/: chart, schemas, alerts, container files, unit.
	@tools/install-deps deploy
	@tools/ci/test-deploy

test-k8s:  ## Run workers on a real control plane and kubelet with a GPU that is made up.
	@tools/install-deps cluster
	@tools/build release worker-orcd orcdctl make-model
	@tools/ci/test-k8s

bench:  ## Build, fetch the model and measure.
	@tools/install-deps
	@tools/build release worker-orcd orcdctl '*_bench'
	@tools/fetch-model > /dev/null
	@tools/bench

lint:  ## Check formatting, house rules and clang-tidy.
	@tools/install-deps lint
	@tools/build release
	@tools/lint

asan tsan:  ## Run the unit and service tests under sanitizers.
	@tools/install-deps asan
	@tools/ci/test-sanitized $@

fuzz:  ## Run every fuzz target for FUZZ_SECONDS (60).
	@tools/install-deps asan
	@tools/ci/run-fuzzers $(FUZZ_SECONDS)

clean:  ## Remove everything that was built.
	@rm -rf build
