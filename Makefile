.DEFAULT_GOAL := help
SHELL := bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DIGITS := examples/digits
VAD := examples/vad
WORKERS ?= 2

.PHONY: help setup demo demo-vad test test-all lint types bench clean docs

help: ## say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## make .venv with everything in `all` and `dev`

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "deploykit needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "torch==$$(sed -n 's/^torch==//p' constraints.txt)" -e '.[all,dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps silero-vad
	touch $@

$(DIGITS)/weights.safetensors: $(DIGITS)/train.py $(DIGITS)/model.py | $(STAMP)
	$(BIN)/python $(DIGITS)/train.py

demo: $(STAMP) $(DIGITS)/weights.safetensors ## the main job, end to end: train, run the chain, serve the best artifact, call it
	$(BIN)/deploykit run $(DIGITS)/deploykit.yaml
	$(BIN)/python $(DIGITS)/client.py

demo-vad: $(STAMP) ## the second example: a published voice-activity model with state
	$(BIN)/python $(VAD)/demo.py

lint: $(STAMP) ## ruff and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

test: lint types ## lint, types and tests
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m 'not slow and not serial'
	$(BIN)/pytest -m 'serial and not slow'

test-all: lint types ## the same with the long sweeps
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m 'not serial'
	$(BIN)/pytest -m serial

bench: $(STAMP) $(DIGITS)/weights.safetensors ## the measurements under benchmarks/, printed as ratios
	$(BIN)/python benchmarks/run_overhead.py
	$(BIN)/python benchmarks/start_up.py
	$(BIN)/python benchmarks/simplify.py
	$(BIN)/python benchmarks/simplify_nodes.py
	$(BIN)/python benchmarks/check_speed.py
	$(BIN)/python benchmarks/check_peers.py

docs: $(STAMP) ## regenerate what is generated in docs/
	$(BIN)/python docs/generate.py

clean: ## remove what demo, tests and builds made (not .venv)
	rm -rf $(DIGITS)/deploykit-out $(DIGITS)/*.npz $(DIGITS)/weights.safetensors $(VAD)/deploykit-out* $(VAD)/*.onnx $(VAD)/*.npz
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build
