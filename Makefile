# `make demo` and `make test` work in a fresh clone: they set up .venv first and then do the job.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint torture clean

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

clean:
	rm -rf .venv demo runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
