# make demo    from nothing to a BLEU table on the toy pair (under 10 minutes on 2 CPU cores)
# make test    the fast test suite
PYTHON ?= python3
RUN := .venv/bin/python

.PHONY: demo test test-slow test-slurm lint report env

demo: env
	$(RUN) -m experiments.demo

test: env
	$(RUN) -m pytest -m "not slow and not slurm" -n auto --dist loadfile --no-loadscope-reorder

test-slow: env
	$(RUN) -m pytest -m slow

test-slurm: env
	$(RUN) -m pytest -m slurm

lint: env
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

report: env
	$(RUN) -m experiments.report --readme README.md

env: .venv/.ready

.venv/.ready: bootstrap.py constraints.txt fairseq.txt setup.py
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: $(PYTHON) is not there: install Python 3.11 or 3.12, or name it: make PYTHON=..."; \
	  exit 1; }
	$(PYTHON) bootstrap.py
