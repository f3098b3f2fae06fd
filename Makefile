# Every target makes what it needs: a clone and Python 3.11 are enough.
# ARGS goes to the command behind the target:  make test ARGS="-k sqlite -x"

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 \
	--no-header --no-annotate --no-emit-index-url --all-extras --group build

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench wheel lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: .venv/.run ## see messages repeat and effects happen once
	@$(BIN)/onceonly demo $(ARGS)

test: .venv/.dev ## run the tests
	@$(BIN)/python -m pytest $(ARGS)

lint: .venv/.dev ## check style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(wildcard src tests bench examples)
	@$(BIN)/lint-imports

bench: .venv/.dev ## measure against the textbook and the peers
	@$(BIN)/python -m bench $(ARGS)

# The wheel is tried where the source tree cannot help it: a new venv, another directory.
wheel: .venv/.run ## build the wheel and try it in a fresh venv
	@rm -rf dist
	@$(BIN)/python -m hatchling build -t wheel
	@set -eu; root=$$PWD; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(BIN)/python -m venv "$$tmp/venv"; \
	"$$tmp/venv/bin/python" -m pip --disable-pip-version-check --quiet install \
		-c requirements/run.txt "$$(echo "$$root"/dist/*.whl)[cli]"; \
	cd "$$tmp"; \
	venv/bin/python -c 'import onceonly; print("imported", onceonly.__file__.rpartition("/site-packages/")[2])'; \
	venv/bin/onceonly demo --json --messages 200

# Versions only: no index address belongs in a committed file. Pins stay unless ARGS=--upgrade.
lock: .venv/bin/python ## pin the requirements again after pyproject.toml changed
	@$(PIP) install uv
	@$(COMPILE) $(ARGS) --group dev --group bench -o requirements/dev.txt
	@$(COMPILE) -c requirements/dev.txt -o requirements/run.txt
	@! grep -nE '://|^-|@ ' requirements/*.txt || { echo "requirements/ must hold names and versions only" >&2; exit 1; }

clean: ## remove everything that make made
	rm -rf .venv dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Two stamps: the demo waits only for what it runs, the tests for everything.
.venv/.run: requirements/run.txt pyproject.toml | .venv/bin/python
	@echo "installing onceonly into .venv"
	@$(PIP) install -r requirements/run.txt
	@$(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

.venv/.dev: requirements/dev.txt .venv/.run
	@echo "installing the development tools into .venv"
	@$(PIP) install -r requirements/dev.txt
	@touch $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "onceonly needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name a newer one:  make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }
