.DEFAULT_GOAL := help

.PHONY: help
help: ## Show these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: ## Run every check: format, lints, tests, docs, features, dependencies, compose
	@scripts/test.sh

.PHONY: test-matrix
test-matrix: ## Run the tests against each supported server version
	@scripts/test-matrix.sh

.PHONY: soak
soak: ## Measure the promised figures in full size, on a quiet machine
	cargo test --release --all-features --test figures --test latency --test memory --test turns \
		--test keeping --test keeping_costs --test fencing_cost --test cli -- --ignored --nocapture --test-threads 1

SECONDS ?= 5

.PHONY: bench-contention
bench-contention: ## Measure processes that contend for one lock, beside retrying clients
	@REDQUORUM_REDIS_SERVER="$$(scripts/servers.sh default)" CARGO_TARGET_DIR=target \
		cargo run --release --quiet --manifest-path benches/peers/Cargo.toml --bin contention -- $(SECONDS)

.PHONY: compose-test
compose-test: ## Bring the five nodes of docker-compose.yml up, check them, take them down
	@scripts/compose-test.sh

.PHONY: demo
demo: ## Show what the lock does, on nodes in memory; on real ones with NODES="redis://… redis://…" or NODES=compose
	@cargo run --quiet --features testing --example demo

.PHONY: fmt
fmt: ## Format the code
	cargo fmt

.PHONY: clippy
clippy: ## Run the lints, warnings as errors
	cargo clippy --all-targets --all-features -- -D warnings

.PHONY: doc
doc: ## Build the documentation, warnings as errors
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features
