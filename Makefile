# make run: install and decode a prompt.  make test: install and run the whole suite.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PROMPT ?= def read_lines(path):
export TOKENIZERS_PARALLELISM = false
# Threads that wait must sleep, not spin: see runtime/__init__.py.
export OMP_WAIT_POLICY = PASSIVE

.PHONY: run test bench bench-compare lint clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

run: $(VENV)/installed
	$(BIN)/pipeline-run --graph mtp.yaml --prompt "$(PROMPT)"

test: run $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not alone"
	$(BIN)/python -m pytest -m alone

bench: $(VENV)/installed-test
	$(BIN)/python -m pytest benchmarks --benchmark-enable --benchmark-only --benchmark-autosave

bench-compare: $(VENV)/installed-test
	$(BIN)/python -m benchmarks.compare

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) build *.egg-info
