# `make demo` and `make test` work in a fresh clone: they set up .venv first and then do the job.
PYTHON ?= python3
BIN := .venv/bin
OURSELVES := --quiet --no-deps --no-build-isolation --editable .
FALLBACK ?= true  # FALLBACK=false: an error if the lock does not fit

.PHONY: setup demo test lint docs bench torture lowest clean

setup: .venv/.ready

# The versions of the lock; on a Python or a system that they have no files for, the newest that pyproject.toml allows.
.venv/.ready: pyproject.toml requirements.lock
	$(PYTHON) -m venv .venv
	{ $(BIN)/pip install --quiet --require-hashes --requirement requirements.lock && $(BIN)/pip install $(OURSELVES); } || { \
	  $(FALLBACK) && echo "requirements.lock does not fit here: installing the versions that pyproject.toml allows" && \
	  $(BIN)/pip install --quiet --upgrade pip && $(BIN)/pip install --quiet --editable '.[dev]'; }
	touch $@

demo: setup  ## a maze, three algorithms, one table and demo/report.html
	$(BIN)/drop demo --out demo

test: lint  ## style, types and all tests
	$(BIN)/pytest --numprocesses 2 --dist loadfile

lowest: .venv-lowest/.ready  ## the lowest versions that pyproject.toml allows: train everything, save, load, read, serve
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 .venv-lowest/bin/pytest tests/lowest.py tests/data/test_minari_source.py

.venv-lowest/.ready: pyproject.toml requirements-lowest.txt
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --requirement requirements-lowest.txt
	.venv-lowest/bin/pip install $(OURSELVES)
	touch $@

torture: setup  ## kills, full disks, damaged and hostile files, hostile clients: nothing may be lost
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
	rm -rf .venv .venv-bench .venv-docs .venv-lowest build demo runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
