# Three commands: `make run` checks the library on this machine and shows its speed in about two
# minutes, `make test` runs linters, types and most tests, `make test-slow` the tests that take long.
# All make a .venv of their own. PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: run test test-slow lint types unit docs clean

# Two of the four types: `normgrad check` takes all.
run: $(VENV)/.base
	@echo "checking every operator and layout in float32 and bfloat16; the first run compiles"
	@$(BIN)/normgrad check --plain --dtype float32,bfloat16
	@echo
	@$(BIN)/normgrad demo

test: lint types unit

# Those with the marker `slow`.
test-slow: $(VENV)/.dev
	$(PYTEST) -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(PYTEST) -m "not slow"

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

$(VENV)/bin/python:
	@echo "making $(VENV), an environment of its own"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "normgrad needs Python 3.11 or newer: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)

# Not quiet: its lines are the sign of life while NumPy and Numba (100 MB) arrive.
$(VENV)/.base: $(VENV)/bin/python pyproject.toml
	@echo "installing normgrad with NumPy and Numba into $(VENV)"
	@$(BIN)/python -m pip install --disable-pip-version-check -e .
	@touch $@

# Groups of dependencies need pip 25.1. pip, not uv: only pip sees the CPU build of torch that a machine may keep on disk. The Triton that
# the tests are for, whatever torch asked for: its CUDA build pins another one.
$(VENV)/.dev: $(VENV)/bin/python pyproject.toml Makefile
	$(BIN)/python -m pip install --quiet 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -e . --group dev
	$(BIN)/python -m pip install --quiet --no-deps triton==3.6.0
	touch $@ $(VENV)/.base

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -e . --group docs
	touch $@ $(VENV)/.base

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
