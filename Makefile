# The whole development loop. Each target sets up what it needs; nothing is installed outside .venv.
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format bench

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(STAMP)  ## make .venv with pinned versions

$(STAMP): pyproject.toml constraints.txt scripts/setup.sh
	PYTHON="$(PYTHON)" scripts/setup.sh

demo: setup  ## adapt a real model to real text; writes runs/demo/report.html
	$(BIN)/acclimate demo --out runs/demo

test: setup  ## run the tests
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/pytest -n 2 -q

lint: setup  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## fix style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## measure speed against Hugging Face on a quiet machine, about an hour; ARGS=--quick: 5 minutes
	$(BIN)/python benchmarks/speed.py $(ARGS)
