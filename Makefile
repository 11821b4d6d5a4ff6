# Everything a newcomer or a gate calls. `make` alone lists the targets.
# Written for GNU make 3.81 (macOS) and later; the logic lives in tools/, in Python's standard library.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
STRICT ?=
UPGRADE ?=
VENV := .venv
RUN := $(VENV)/bin/python
# Built again once the verbs header has come: without it the module has no RDMA and the mock is not made.
BUILT := $(VENV)/.built$(if $(wildcard /usr/include/infiniband/verbs.h),.verbs)
KERNELS := $(shell find kernels_c -type f 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help setup quickstart lab notebook check test provided lint types bench bench-slow lock clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: $(BUILT)  ## make .venv from the lock and build the compiled module

quickstart: setup  ## cut a real model over 1, 2 and 4 local engines and account for the time
	@$(VENV)/bin/tbkit quickstart --out build/quickstart

lab: setup  ## JupyterLab on notebooks/
	@$(RUN) -m jupyterlab --ServerApp.root_dir=notebooks --LabApp.news_url=None \
	  $$([ "$$(id -u)" = 0 ] && echo --allow-root)

notebook: setup  ## execute the published notebook again, in full, on an idle machine
	@$(RUN) tests/notebooks/execute.py notebooks/01_quickstart.py

check: lint types  ## lint, types and unit tests: before each commit
	@$(RUN) tools/gate.py --unit

test: provided lint types  ## the whole gate; STRICT=1 makes anything left out a failure
	@$(RUN) tools/gate.py $(if $(STRICT),--strict)

provided:
	@"$(PYTHON)" tools/system.py test

lint: setup
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

types: setup
	@$(RUN) -m mypy

bench: setup  ## measure against the peers, on an idle machine; table here, rows in build/bench/
	@$(RUN) tools/system.py bench
	@$(RUN) -m tests.bench

bench-slow: setup  ## time quickstart and test once each
	@$(RUN) -m tests.bench --slow

lock: $(VENV)/.locked  ## solve pyproject.toml into requirements.lock; UPGRADE=1 takes newer versions
	@$(RUN) tools/environment.py lock $(if $(UPGRADE),--upgrade)

clean:  ## remove all that make made
	@rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.locked: requirements.lock
	@[ -n "$(PYTHON)" ] || { echo "setup: no Python 3.11 or newer was found: install one, or name it with make PYTHON=/path/to/python3" >&2; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "setup: $(PYTHON) is not a Python 3.11 or newer: install one, or name it with make PYTHON=/path/to/python3" >&2; exit 2; }
	@"$(PYTHON)" tools/environment.py install

$(BUILT): $(VENV)/.locked pyproject.toml $(KERNELS)
	@$(RUN) tools/environment.py build
	@touch $@
