# Needs Python 3.11+, a JDK 17 or 21, and make. Every target does its own set-up.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.freshet-setup
UV_VERSION := 0.13.9
DIST := dist
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(if $(shell $(name) -c 'import sys; print(sys.version_info >= (3, 11) or "")' 2>/dev/null | grep True),$(name))))

# uv does not read pip's settings: pass on the index that pip uses, if any.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif

.PHONY: help setup lock demo format lint check test simulate hunt dist sbom environment fuzz mutation bench soak helm

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with everything at the locked versions

$(STAMP): requirements.lock pyproject.toml serving/client/pyproject.toml $(wildcard serving/client/*.py serving/client/*/*.py serving/locations/*.py tokens/*.py)
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; install one or run make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "error: $(PYTHON) cannot create virtual environments (on Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv==$(UV_VERSION)
	@# PySpark is built from source, and uv would keep source and wheel, 1 GB, again for each set-up
	sed -n '/^pyspark==/,/[^\\]$$/p' requirements.lock | $(BIN)/uv pip install --quiet --python $(BIN)/python --cache-dir $(VENV)/spark-cache --require-hashes --build-constraints requirements.lock --no-deps -r -
	@rm -rf $(VENV)/spark-cache
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --build-constraints requirements.lock -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --reinstall-package freshet-client ./serving/client
	@touch $@

lock: ## Resolve versions again: requirements.lock, and the servers' pins
	@test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet uv==$(UV_VERSION); }
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --extra spark --generate-hashes --no-emit-index-url --no-annotate --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --constraints requirements.lock --generate-hashes --no-emit-index-url --no-annotate --custom-compile-command "make lock" --output-file docker/requirements.lock pyproject.toml
	$(MAKE) setup
	$(BIN)/python -m freshet.local.pin

demo: setup ## Run everything on this machine: real servers, real traffic (DEMO_SECONDS=20 ends by itself)
	$(BIN)/freshet demo

format: setup ## Format the code, and fix what the linter can fix
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

lint: setup ## Check format, lint and types, without changing anything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint ## Check format, lint, types, fast tests, the lock
	$(BIN)/python -m tests.packaging.audit_lock
	$(BIN)/pytest -q -m "not integration and not slow" -n 2 --dist worksteal

test: setup ## Run all tests, on real servers: the fast ones first; of many cases of a slow one every third, none for a nightly run
	$(BIN)/pytest -q -m "not integration and not slow" -n 2 --dist worksteal
	$(BIN)/pytest -q -m alone
	$(BIN)/pytest -m "(integration or slow) and not alone and not nightly" --every 3 -n 3 --dist loadfile --no-loadscope-reorder # they wait more than they work

test-all: setup ## Run all tests, in all their cases, nightly
	$(BIN)/pytest -q -m alone
	$(BIN)/pytest -m "not alone" -n 3 --dist loadfile --no-loadscope-reorder

simulate: setup ## Run 100,000 new histories, of slow worlds fewer, for a nightly run (SIMULATE_HISTORIES, SIMULATE_SEED=today)
	$(BIN)/freshet simulate --histories $${SIMULATE_HISTORIES:-100000} --seed $${SIMULATE_SEED:-$$(date +%Y%m%d)} --jobs 2
	$(BIN)/freshet simulate --near --histories $$(($${SIMULATE_HISTORIES:-100000} / 10)) --seed $${SIMULATE_SEED:-$$(date +%Y%m%d)} --jobs 2

hunt: setup ## Hunt every planted bug anew, for a nightly run (HUNT_HISTORIES=10000 HUNT_SEED=1)
	$(BIN)/freshet simulate --mutate all --histories $${HUNT_HISTORIES:-10000} --seed $${HUNT_SEED:-1} --jobs 2

dist: setup ## Build both wheels, of the application and of its client, into dist/
	$(BIN)/uv build --quiet --wheel --clear --no-build-isolation --python $(BIN)/python --out-dir $(DIST) .
	$(BIN)/uv build --quiet --wheel --no-build-isolation --python $(BIN)/python --out-dir $(DIST) serving/client

sbom: setup ## Write the bill of materials of what the image and the wheel install, as CycloneDX, into dist/sbom.json
	mkdir -p $(DIST)
	$(BIN)/uv tool run --quiet --from cyclonedx-bom==7.5.0 cyclonedx-py requirements docker/requirements.lock \
		--pyproject pyproject.toml --output-reproducible --of JSON --output-file $(DIST)/sbom.json

environment: dist ## Pack what Spark's executors need beside PySpark, into dist/environment.tar.gz
	$(BIN)/uv venv --quiet --clear --relocatable --python $(BIN)/python $(DIST)/environment
	$(BIN)/uv pip install --quiet --python $(DIST)/environment/bin/python --constraints requirements.lock $$($(BIN)/python -m spark_jobs.engine.executors)
	$(BIN)/uv pip install --quiet --python $(DIST)/environment/bin/python --no-deps $(DIST)/freshet_cache-*.whl
	tar -C $(DIST)/environment -cf - . | gzip -1 > $(DIST)/environment.tar.gz
	rm -rf $(DIST)/environment

helm: setup ## Render the Helm chart anew, into docker/helm/rendered.yaml (FRESHET_TEST_HELM=/path/to/helm)
	$(BIN)/python -m tests.docs.test_helm

fuzz: setup ## Feed hostile input to every parser (FUZZ_SECONDS=60 each, FUZZ_SEED=1, FUZZ_TARGET=all)
	$(BIN)/python -m tests.fuzz --target $${FUZZ_TARGET:-all} --seed $${FUZZ_SEED:-1} --seconds $${FUZZ_SECONDS:-60} --count 1000000000

mutation: setup ## Make mistakes in the code that tests or the simulator must notice (MUTATION="tokens --sample 40")
	$(BIN)/python -m lab.mutation $${MUTATION:-}

bench: setup ## Measure on this machine
	$(BIN)/python -m benchmarks

soak: setup ## Run real servers under random faults, judge every answer (SOAK_MINUTES=30 SOAK_SEED=…); then all of the tests that are long
	$(BIN)/python -m benchmarks.soak
	FRESHET_TEST_LONG=1 $(BIN)/pytest -m long -n 2 --dist loadfile --no-loadscope-reorder
