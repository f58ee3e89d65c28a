.DEFAULT_GOAL := help

.PHONY: help
help: ## Show these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: ## Run every check: format, lints, tests, docs, features, dependencies, compose
	@scripts/test.sh

.PHONY: test-matrix
test-matrix: ## Run the tests against each supported server version
	@scripts/test-matrix.sh

# All of it with the same features, so that nothing is built twice.
soak_test = cargo test --release --workspace --all-features

.PHONY: test-holders
test-holders: ## Put each known case of two holders to each server version, 50 times at random moments; RUNS=5 for less: an hour
	@scripts/test-holders.sh $(RUNS)

.PHONY: soak
soak: ## Torture for an hour, then the promised figures in full size, on a quiet machine
	$(soak_test) --test torture -- --ignored long_storm --nocapture
	$(soak_test) --test figures --test quiet --test tool -- --ignored --nocapture --test-threads 1
	$(soak_test) --test servers -- --ignored --nocapture --test-threads 1 keeping:: wall_clock::
	$(soak_test) --lib fuzz_for_long -- --ignored --nocapture
	REDQUORUM_FUZZ=1000000 $(soak_test) --bin redquorum any_file
	scripts/compose-test.sh "$(soak_test) --test torture -- --ignored containers --nocapture"

# The version that Cargo.toml states, which rustup gets if it is not there.
rust_version = $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

.PHONY: msrv
msrv: ## Build the library and the tool with the least Rust version that is stated
	rustup toolchain install $(rust_version) --profile minimal --no-self-update
	CARGO_TARGET_DIR=target/msrv cargo +$(rust_version) check --locked --all-features --package redquorum --package redquorum-cli

# How long each client is measured in each round; QUICK=1 only shows that everything works.
bench_arguments = $(if $(QUICK),--quick) $(SECONDS)
bench_run = REDQUORUM_REDIS_SERVER="$$(scripts/servers.sh default)" CARGO_TARGET_DIR=target \
	cargo run --release --manifest-path benches/Cargo.toml

.PHONY: bench
bench: ## Measure the library beside the bare redis crate; QUICK=1 for a short run, SECONDS=2 for a longer one
	@$(bench_run) --bin allocations
	@$(bench_run) --bin bench -- $(bench_arguments)

.PHONY: bench-peers
bench-peers: ## Measure it beside other clients; QUICK=1 and SECONDS=2 as above
	@$(bench_run) --features peers --bin peers -- $(bench_arguments)

.PHONY: bench-contention
bench-contention: ## Measure only processes that contend for one lock, beside retrying clients
	@$(bench_run) --features peers --bin peers -- contention $(bench_arguments)

.PHONY: bench-protocol
bench-protocol: ## Measure the protocol alone, without servers
	@CARGO_TARGET_DIR=target cargo bench --quiet --manifest-path benches/Cargo.toml --bench protocol

.PHONY: bench-docs
bench-docs: bench bench-peers ## Measure everything, and refresh docs/benchmarks.md and its plots
	@$(bench_run) --bin report

.PHONY: mutants
mutants: ## Change protocol and janitor in every small way and see whether a test notices: an hour; SHARD=0/10 for a part
	scripts/mutants.sh $(SHARD)

.PHONY: mutants-lua
mutants-lua: ## Change each Lua script in every small way and see whether a test notices: some minutes
	REDQUORUM_REDIS_SERVER="$$(scripts/servers.sh default)" cargo test --workspace --all-features --test scripts \
		every_change_is_noticed -- --ignored --nocapture

.PHONY: compose-test
compose-test: ## Bring the five nodes of docker-compose.yml up, check them, take them down
	@scripts/compose-test.sh

# How to start the tool, for who has built it already.
TOOL = cargo run --quiet --package redquorum-cli --

compose_nodes = $(foreach port,7101 7102 7103 7104 7105,redis://127.0.0.1:$(port))

.PHONY: demo
demo: ## Show what the lock does, on nodes in memory; on real ones with NODES="redis://… redis://…" or NODES=compose
	@[ "$$NODES" != compose ] || NODES="$(compose_nodes)"; \
		REDQUORUM_NODES="$$NODES" $(TOOL) demo $(if $(NODES),--real)

.PHONY: fmt
fmt: ## Format the code
	cargo fmt --all

.PHONY: clippy
clippy: ## Run the lints, warnings as errors
	cargo clippy --workspace --all-targets --all-features -- -D warnings

.PHONY: doc
doc: ## Build the documentation, warnings as errors
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features
