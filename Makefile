# Every target sets up .venv by itself when it is missing or older than pyproject.toml or
# constraints.txt, which pins the version of torch, or than the sources of the compiled kernel.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Tests start many processes, and each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-all bench docs pages lint style types layers checks setup clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-10s %s\n", $$1, $$2}'

setup: $(READY) ## create .venv and install everything

KERNEL := $(wildcard nmln/potentials/*.[ch]) nmln/potentials/compile_kernel.py hatch_build.py

$(READY): pyproject.toml constraints.txt $(KERNEL)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "nmln needs Python 3.11 or newer. Name one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

run: $(READY) ## the main job on the built-in molecules, in about 10 minutes
	$(BIN)/nmln run

lint: types style layers ## format, style, types, import layers

style: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/pyright

layers: $(READY)
	$(BIN)/lint-imports --no-logo

checks: $(READY)  # two at a time
	@$(MAKE) --no-print-directory -j 2 lint docs

test: checks ## all checks but the slow ones
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-all: checks ## all checks
	$(BIN)/python -m pytest -n 2 --dist loadfile

bench: $(READY) ## measure speed as ratios in one run
	$(BIN)/python -m benchmarks.worlds
	$(BIN)/python -m benchmarks.energy
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.mixing
	$(BIN)/python -m benchmarks.inference
	$(BIN)/python -m benchmarks.knowledge
	$(BIN)/python -m benchmarks.molecules
	$(BIN)/python -m benchmarks.domains
	$(BIN)/python -m benchmarks.baselines

docs: $(READY) ## build the pages into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site
	@echo "The pages are in site/index.html."

pages: $(READY) ## write the pages that are made from the code
	for script in cli_reference settings_reference module_table notebooks; do \
	  PYTHONPATH=. $(BIN)/python scripts/$$script.py || exit 1; done

clean: ## remove everything that was built
	rm -rf .venv site runs .pytest_cache .ruff_cache .hypothesis .import_linter_cache
