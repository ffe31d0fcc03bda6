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
	@echo "Setting up $(VENV) (once; one to three minutes)"
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

test: lint unit live ## Everything: style, types, layers, unit tests, tests on a real control plane

live: control-plane ## Tests on a real control plane; what fails is tried once more, and both tries are shown
	$(BIN)/pytest -q -m controlplane --cache-clear || $(BIN)/pytest -q -m controlplane --last-failed --last-failed-no-failures none

cluster: control-plane ## A real control plane with fake GPU nodes and the gate; keeps running (FLEET=demo POLICIES=policies)
	@$(BIN)/python -m controlplane up --fleet $(or $(FLEET),demo) --policies $(or $(POLICIES),policies)

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

bench-grants: control-plane ## What a grant adds to a Pod, and grants a second beside plain templates (5 minutes); writes docs/proofs/grants.md
	@$(BIN)/python -m bench.grants --write

prove-rolling: control-plane ## Creates at a steady rate while everything about the gate changes (35 minutes); writes docs/proofs/rolling.md
	@$(BIN)/python -m proofs.rolling

prove-order: control-plane ## Order kept across nodes, up to 160 of them; writes docs/proofs/order.md
	@$(BIN)/python -m proofs.order

prove-health: control-plane ## 200 Pods while devices and nodes fall ill, controller and API server die (35 minutes; MINUTES=30); writes docs/proofs/health.md
	@$(BIN)/python -m proofs.health --minutes $(or $(MINUTES),30)

prove-quota: control-plane ## 200 Pods at once against a quota while replicas, leader and connections die, 20 rounds (ROUNDS=20); writes docs/proofs/quota.md
	@$(BIN)/python -m proofs.quota --rounds $(or $(ROUNDS),20)

prove-switch: control-plane ## How soon replicas follow the switch between lanes, with no controller (8 minutes); writes docs/proofs/switch.md
	@$(BIN)/python -m proofs.switching

prove-flood: control-plane ## 600 Pods of one tenant beside two small ones on 32 devices (5 minutes); writes docs/proofs/flood.md
	@$(BIN)/python -m proofs.flood

prove-patches: $(READY) ## Every patch for 10,000 generated Pods in each lane (10 minutes)
	DRA_GATE_EXAMPLES=10000 $(BIN)/pytest -q tests/admission/test_mutate_properties.py tests/admission/test_plugin_lane.py

prove-allocator: control-plane ## The restated allocator beside the scheduler's: 20,000 questions, then Pods (20 minutes); writes docs/proofs/allocator.md
	@$(BIN)/python -m proofs.allocator

prove-fairness: $(READY) ## The arbiter in simulated time beside two queues without tenants (about 5 minutes); writes docs/fairness.md
	@$(BIN)/python -m proofs.fairness

prove-compare: $(READY) ## Comparisons of simulated cohorts: false alarms and what is noticed (12 minutes; RUNS=300); writes docs/migration.md
	@$(BIN)/python -m proofs.compare --runs $(or $(RUNS),300)

prove-migration: control-plane ## Six tenants over to DRA under load, back when it fails, and over again; then the switch with Pods in every phase (35 minutes; CHAPTER=60); writes docs/proofs/migration.md, phases.md
	@$(BIN)/python -m proofs.migration --seconds $(or $(CHAPTER),60)
	@$(BIN)/python -m proofs.phases

bench-arbiter: $(READY) ## The arbiter at up to 100,000 held Pods; writes docs/proofs/arbiter.md
	@$(BIN)/python -m bench.arbiter --write

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

.PHONY: help setup demo lint unit live control-plane test cluster demo-cluster bench bench-capacity bench-api bench-big bench-memory bench-arbiter prove-fairness prove-compare prove-patches prove-allocator prove-health prove-order prove-quota prove-rolling prove-hostile prove-closed prove-diff prove-flood prove-switch prove-migration kind lock
