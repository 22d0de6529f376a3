# One environment in .venv, pinned by requirements.lock; nothing outside this folder is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo fixtures-demo test check format bench lock clean

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

demo: $(VENV)/run.stamp ## run the study quickstart and show its result
	$(BIN)/snakemake results/report/quickstart.html
	$(BIN)/python -m fl show quickstart

fixtures-demo: $(VENV)/run.stamp ## a tiny study over generated files of every published data set
	OMP_NUM_THREADS=1 $(BIN)/python tests/fixtures_demo.py

test: $(VENV)/test.stamp ## lint, type-check and run every test
	$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

check: $(VENV)/test.stamp ## format, lint and types, the workflow included
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/mypy

format: $(VENV)/test.stamp ## put everything in the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/snakefmt Snakefile workflow

bench: $(VENV)/run.stamp ## what is fast is measured here, beside plain PyTorch where that is fair
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.local_steps
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.kernels
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.partitions

lock: ## resolve the ranges of pyproject.toml anew into the lock files
	workflow/scripts/lock $(PYTHON)

clean: ## remove the environment (results and data stay)
	rm -rf $(VENV)

$(VENV)/run.stamp: requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Fedloom needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	touch $@

$(VENV)/test.stamp: $(VENV)/run.stamp requirements-test.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-test.lock
	touch $@
