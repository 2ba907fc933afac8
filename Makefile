# Two commands: `make run` checks the library on this machine, `make test` runs all of its tests.
# Both make a .venv of their own. PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test lint types unit docs clean

run: $(VENV)/.base
	$(BIN)/normgrad check

test: lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "normgrad needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e .
	touch $@

# pip, not uv: only pip sees the CPU build of torch that a machine may keep on disk. The Triton that
# the tests are for, whatever torch asked for: its CUDA build pins another one.
$(VENV)/.dev: $(VENV)/bin/python pyproject.toml Makefile
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps triton==3.6.0
	touch $@ $(VENV)/.base

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	touch $@ $(VENV)/.base

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
