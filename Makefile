# The development loop. Each target installs what it needs into .venv and nowhere else.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-changed lint format docs bench

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Compiled files are kept even if the environment says otherwise: tests start many processes with the same imports.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE= $(BIN)/pytest

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

setup: $(STAMP)  ## create .venv with pinned versions

$(STAMP): pyproject.toml constraints.txt scripts/setup.sh
	PYTHON="$(PYTHON)" scripts/setup.sh

demo: setup  ## adapt a real model to real text; writes runs/demo/report.html
	$(BIN)/acclimate demo --out runs/demo

test: setup  ## run the tests
	$(PYTEST) -n 2 --dist worksteal -q

test-changed: setup  ## run the tests that the changes since the main branch reach
	tests=$$($(BIN)/python scripts/changed_tests.py) && if [ -n "$$tests" ]; then $(PYTEST) -q $$tests; fi

lint: setup  ## check style, types and words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_words.py

format: setup  ## fix style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup  ## render the pages of results and papers; build the documentation site in site/
	$(BIN)/python scripts/render_results.py
	$(BIN)/python scripts/render_papers.py
	NO_MKDOCS_2_WARNING=1 HF_HUB_OFFLINE=1 $(BIN)/mkdocs build --strict

bench: setup  ## measure speed on an idle machine, at most 90 minutes; ARGS=--quick takes about 10
	$(BIN)/python benchmarks/speed.py $(ARGS)
