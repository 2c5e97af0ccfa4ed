# `make demo` and `make test` work in a fresh clone: they set up .venv first and then do the job.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint docs bench torture clean

setup: .venv/.ready

.venv/.ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: setup  ## a maze, three algorithms, one table and demo/report.html
	$(BIN)/drop demo --out demo

test: lint  ## style, types and all tests
	$(BIN)/pytest --numprocesses 2 --dist loadfile

torture: setup  ## a hundred kills, full disks, damaged and hostile files: nothing may be lost
	$(BIN)/python benchmarks/torture

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup .venv-docs/.ready  ## the manual and the reference of the Python API as a site: build/site/index.html
	$(BIN)/python docs/make_site.py

.venv-docs/.ready: docs/requirements.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --upgrade pip
	.venv-docs/bin/pip install --quiet --requirement docs/requirements.txt
	touch $@

bench: .venv-bench/.ready  ## every promised speed as a ratio inside one run, beside PyTorch and d3rlpy
	.venv-bench/bin/python benchmarks/speed/bench.py

.venv-bench/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --quiet --upgrade pip
	.venv-bench/bin/pip install --quiet torch --index-url https://download.pytorch.org/whl/cpu || .venv-bench/bin/pip install --quiet torch
	.venv-bench/bin/pip install --quiet --editable '.[robotics]' tqdm click structlog colorama dataclasses-json scikit-learn
	.venv-bench/bin/pip install --quiet --no-deps d3rlpy==2.8.1 gym==0.26.2 gym-notices==0.1.0 cloudpickle  # it asks for an old Gymnasium
	touch $@

clean:
	rm -rf .venv .venv-bench .venv-docs build demo runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
