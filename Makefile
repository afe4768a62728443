# `make quickstart` and `make test` are all that a newcomer needs; both make .venv first where it is missing.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# `make install-gpu` creates this file. If it exists, all targets install the packages for a GPU.
ON_GPU := .venv/.gpu
WANTED := requirements$(if $(wildcard $(ON_GPU)),-gpu).txt

# Packages are installed without bytecode, which Python writes when it first imports them. Many container images set the
# variable below, which forbids that. Each process would then compile the libraries again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install install-gpu install-locked lock quickstart smoke test test-slow gpu-report conf check docs docs-serve clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: .venv/.installed ## make .venv with what the project needs (CPU)

install-gpu: ## make .venv with what the project needs on a machine with an NVIDIA GPU
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip uninstall --quiet --yes faiss-cpu
	$(INSTALL) --no-compile -r requirements-gpu.txt
	$(INSTALL) --no-deps -e .
	@touch $(ON_GPU) .venv/.installed

install-locked: ## make .venv with the tested versions, and check the hash of every package except torch
	$(PYTHON) -m venv .venv
	$(INSTALL) --no-compile --require-hashes --no-deps -r requirements-lock.txt
	$(INSTALL) --no-compile "$$(sed -n 's/^# locked without hashes: //p' requirements-lock.txt)"
	$(INSTALL) --no-deps -e .
	@touch .venv/.installed .venv/.installed-dev .venv/.installed-docs

lock: .venv/.installed ## rewrite requirements-lock.txt with the newest versions that requirements*.txt allow
	$(INSTALL) uv
	$(BIN)/python .ci/lock.py

quickstart: .venv/.installed ## a recipe from docstrings to a comparison table, without any download of data or weights
	$(BIN)/python run.py experiment=quickstart

smoke: .venv/.installed ## a test of the installation: a recipe of a few steps on the docstrings of the standard library
	$(BIN)/python run.py experiment=smoke

test: .venv/.installed-dev ## all tests except the slow ones, in one process per core
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

test-slow: .venv/.installed-dev ## the slow tests: whole recipes, kills, and the many values of tests of which `make test` takes a few
	$(BIN)/python -m pytest -m slow

gpu-report: .venv/.installed-dev ## the measurements that need a GPU, on one page, in 30 minutes; device=cpu tests the command
	$(BIN)/python experiments/gpu/report.py device=$(or $(device),cuda)

conf: .venv/.installed ## make conf/stage/ from the config classes of the stages, and docs/rows.md from the published numbers
	$(BIN)/python .ci/conf_stage.py
	$(BIN)/python .ci/rows_page.py

check: .venv/.installed-dev ## lint, types, import cycles, conf/stage, size of the code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python .ci/conf_stage.py --check
	$(BIN)/python .ci/rows_page.py --check
	$(BIN)/python .ci/structure.py

docs: .venv/.installed-docs ## build the documentation in site/; fails on a warning or a dead link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: .venv/.installed-docs ## show the documentation in a browser, and rebuild it at every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

clean: ## remove .venv, site and caches; outputs/ stays
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache

.venv/.installed: $(WANTED) pyproject.toml
	$(PYTHON) -m venv .venv
	@echo "installing into .venv, a minute or two"
	$(INSTALL) --no-compile -r $(WANTED)
	$(INSTALL) --no-deps -e .
	@touch $@

.venv/.installed-dev: .venv/.installed requirements-dev.txt
	sed '/^-r /d' requirements-dev.txt | $(INSTALL) --no-compile -r $(WANTED) -r /dev/stdin
	@touch $@

.venv/.installed-docs: requirements-docs.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --no-compile -r requirements-docs.txt
	@touch $@
