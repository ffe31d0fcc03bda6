# Everything a fresh machine needs is Python 3.11 or newer and make: each target sets up what it stands on.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PYTHONPATH := tests

.DEFAULT_GOAL := help

help: ## Show what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

$(READY): pyproject.toml requirements/test.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "dra-gate needs Python 3.11 or newer; say make PYTHON=python3.12")'
	@echo "Setting up $(VENV) (about half a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/test.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

setup: $(READY) ## Make the virtual environment from the locked requirements

demo: $(READY) ## Show the gate at work on example Pods; no cluster
	@$(BIN)/dra-gate demo

lint: $(READY) ## Style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY) ## Tests that need no cluster
	$(BIN)/pytest -q -m "not controlplane"

control-plane: $(READY) ## Build etcd and Kubernetes, once a version (about 7 minutes on two cores)
	@$(BIN)/python -m controlplane build

test: lint control-plane ## Everything: style, types, layers, unit tests, tests on a real control plane
	$(BIN)/pytest -q

cluster: control-plane ## A real control plane with fake GPU nodes and the gate; keeps running
	@$(BIN)/python -m controlplane up --fleet demo --policies policies

demo-cluster: control-plane ## The story on a real control plane: first choice, fallback, a floor, a bypass
	@$(BIN)/python -m controlplane story

bench: $(READY) ## Latency and throughput of the server beside two baselines
	@$(BIN)/python -m bench

bench-api: control-plane ## Cost of a Pod through the API server beside no webhook and admission policies; writes docs/proofs/bench-api.md
	@$(BIN)/python -m bench.apiserver --write

bench-memory: control-plane ## Memory and start of a replica in an empty and a large cluster; writes docs/proofs/memory.md
	@$(BIN)/python -m bench.memory --write

bench-big: $(READY) ## Verdicts on objects of 3 MiB beside what reading them costs; writes docs/proofs/big.md
	@$(BIN)/python -m bench.big --write

bench-capacity: $(READY) ## An event and a decision record at 1,000 nodes and 8,000 devices
	@$(BIN)/python -m bench.capacity

prove-rolling: control-plane ## Creates at a steady rate while everything about the gate changes (35 minutes); writes docs/proofs/rolling.md
	@$(BIN)/python -m proofs.rolling

prove-order: control-plane ## Order kept across nodes, up to 160 of them; writes docs/proofs/order.md
	@$(BIN)/python -m proofs.order

prove-health: control-plane ## 200 Pods while devices and nodes fall ill, controller and API server die (35 minutes; MINUTES=30); writes docs/proofs/health.md
	@$(BIN)/python -m proofs.health --minutes $(or $(MINUTES),30)

prove-allocator: control-plane ## The restated allocator beside the scheduler's: 20,000 questions, then Pods (20 minutes); writes docs/proofs/allocator.md
	@$(BIN)/python -m proofs.allocator

prove-closed: $(READY) ## Hostile Pods against the rules, judged by an oracle that knows none of them (10 minutes); writes docs/proofs/closed.md
	@$(BIN)/python -m closed.prove --write
	@$(BIN)/python -m closed.disabled --append
	@$(BIN)/python -m closed.switches --append

prove-diff: $(READY) ## policy diff and loader with one thing wrong at a time: which test notices; writes docs/proofs/diff.md
	@$(BIN)/python -m closed.mutants --write

kind: $(READY) ## The gate and the cluster tests on a kind cluster; needs Docker or Podman, kind and kubectl
	@$(BIN)/python -m kind_cluster

prove-hostile: $(READY) ## Bad clients beside honest ones (about 15 minutes); writes docs/proofs/hostile.md
	@$(BIN)/python -m hostile

lock: $(READY) ## Write the locked requirements anew
	@$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --no-emit-index-url --no-emit-find-links --generate-hashes --universal --python-version 3.11 pyproject.toml -o requirements/runtime.txt
	@echo 'hatchling>=1.27,<2' | $(BIN)/uv pip compile --quiet --no-emit-index-url --no-emit-find-links --generate-hashes --universal --python-version 3.11 - -o requirements/build.txt
	$(BIN)/uv pip compile --quiet --no-emit-index-url --no-emit-find-links --generate-hashes --universal --python-version 3.11 --extra test pyproject.toml -o requirements/test.txt

.PHONY: help setup demo lint unit control-plane test cluster demo-cluster bench bench-capacity bench-api bench-big bench-memory prove-allocator prove-health prove-order prove-rolling prove-hostile prove-closed prove-diff kind lock
