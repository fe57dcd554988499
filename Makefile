# `make serve` and `make test` work on a fresh clone; neither repeats work that is already done.

PYTHON ?= python3
MODEL ?=
HOST ?=
PORT ?=
TESTS ?= tests

VENV := .venv
BIN := $(VENV)/bin
PROJECT := pyproject.toml requirements.lock
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock

.DEFAULT_GOAL := help
.PHONY: help serve test check format bench lock clean

help:
	@echo "make serve   serve the default model on 127.0.0.1:8000 [MODEL=path PORT=n HOST=address]"
	@echo "make test    run the tests [TESTS=tests/unit]"
	@echo "make check   format, lint, types and import layering"
	@echo "make format  rewrite the sources as 'make check' wants them"
	@echo "make bench   measure start-up, and decoding beside peers [PEER_PYTHON=path]"
	@echo "make lock    pin newer versions in requirements.lock"
	@echo "make clean   remove the virtual environment and caches"
	@echo "PYTHON=python3.12 chooses the interpreter that the environment is made with."

serve: $(VENV)/serve.stamp
	@$(BIN)/egglm serve $(if $(MODEL),'$(MODEL)') $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT))

test: $(VENV)/dev.stamp
	$(BIN)/pytest $(TESTS)

check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/serve.stamp
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.cpu_decode $(if $(PEER_PYTHON),--peer-python '$(PEER_PYTHON)')

lock: $(VENV)/dev.stamp
	$(INSTALL) uv
	$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --extra dev --no-header \
		--annotation-style line --output-file requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "EggLM needs Python 3.11, 3.12 or 3.13: name one as in make serve PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/serve.stamp: $(PROJECT) | $(BIN)/python
	@echo "Installing EggLM into $(VENV), once"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/dev.stamp: $(PROJECT) | $(BIN)/python
	@echo "Installing EggLM and its development tools into $(VENV), once"
	@$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/serve.stamp
