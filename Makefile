# What is done every day, one word each. Python and the environment's place can be chosen: make test PYTHON=python3.12 VENV=../env
# Where packages come from is pip's own affair: its configuration and its PIP_… variables are used as they are.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
ARGS ?=

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
QUIETLY := $(INSTALL) --quiet
# An empty file for each layer of the environment, so that a second call has nothing to do.
BASE := $(VENV)/.base
PACKAGE := $(VENV)/.package
DEV := $(VENV)/.dev
DOCS := $(VENV)/.docs
BENCH := $(VENV)/.bench

.PHONY: help install run test fuzz golden test-older lint types bench record tables docs clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

install: $(PACKAGE) ## Install qkv and what it needs into .venv

run: $(PACKAGE) ## Install, then train a small model on the documentation that comes with Python, and let it write
	$(BIN)/qkv demo $(ARGS)

test: $(DEV) ## Run every test; those on real data where QKV_DATA names its folder
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

# The nearest that a newer x86 processor comes to one with neither AVX-512 nor bf16. Not hidden: instructions that torch's own
# kernels and the compiler of the machine use without asking these settings. Other processors ignore both.
OLDER := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
# The tests whose result depends on which kernels run.
BY_PROCESSOR := tests/ops tests/mixers tests/models tests/inspection tests/training

test-older: $(DEV) ## Run the tests that depend on the processor as on one with AVX2 alone
	$(OLDER) $(BIN)/python -m pytest -n $(WORKERS) $(BY_PROCESSOR) $(ARGS)

fuzz: $(DEV) ## Draw random specs, valid ones and others, and train each one step; ARGS="--count 5000 --seed 0"
	$(BIN)/python -m tests.fuzz.specs $(ARGS)

golden: $(DEV) ## Write the losses of short runs of every recipe form, or compare: ARGS="--compare before.json"
	$(BIN)/python -m tests.golden.losses $(or $(ARGS),--write golden.json)

lint: $(DEV) ## Check style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(DEV) ## Check types
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(BENCH) ## Measure against other libraries, side by side in one run
	$(BIN)/python benchmarks/train_step.py $(ARGS)
	$(BIN)/python benchmarks/decode.py $(ARGS)

record: $(DEV) ## Train recipes and write their results into them: make record ARGS="--minutes 5"
	$(BIN)/python recipes/record.py $(ARGS)
	$(BIN)/python recipes/tables.py

tables: $(PACKAGE) ## Write the tables of recipes/README.md from the recipes
	$(BIN)/python recipes/tables.py

docs: $(DOCS) ## Build the documentation into docs/_build/html
	$(BIN)/sphinx-build --quiet --fail-on-warning docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean: ## Remove what tools left behind; runs and .venv stay
	rm -rf build dist docs/_build .pytest_cache .ruff_cache .hypothesis .benchmarks
	find src tests examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BASE): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "qkv runs on Python 3.11, 3.12 and 3.13; name one of them: make PYTHON=python3.12" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(QUIETLY) pip
	@touch $@

# torch comes first and alone: its pinned version decides which of its builds is taken, and it is what takes the time.
$(PACKAGE): $(BASE) pyproject.toml
	$(INSTALL) torch
	$(QUIETLY) --editable .
	@touch $@

$(DEV): $(PACKAGE)
	$(QUIETLY) --group dev
	@touch $@

$(DOCS): $(PACKAGE)
	$(QUIETLY) --group docs
	@touch $@

$(BENCH): $(PACKAGE)
	$(QUIETLY) --group bench
	@touch $@
