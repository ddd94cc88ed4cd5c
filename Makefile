# Each target makes .venv by itself, installs what it needs once, and runs. Nothing but Python and pip is needed.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
.DEFAULT_GOAL := help
.PHONY: help demo studio browsers test test-all check format bench docs clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP)-%: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@

demo: $(STAMP)-dev ## compare the mechanisms on embedded data and write runs/demo/report.html
	$(BIN)/foveate demo

studio: $(STAMP)-studio ## a web page on this machine: ask, caption, search, play
	$(BIN)/foveate studio

browsers: $(STAMP)-dev $(STAMP)-studio ## what the browser walks need: gradio, playwright, Debian's chromium
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt playwright
	@command -v chromium >/dev/null || apt-get install -y --no-install-recommends chromium || \
		echo "no chromium: the browser walks will be skipped"

test: $(STAMP)-dev ## the fast tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-all: browsers ## the slow tests too: trainings, faults, browser walks
	$(BIN)/python -m pytest -q -m "slow or not slow"

check: $(STAMP)-dev ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)-dev ## mend what `make check` would refuse
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)-dev $(STAMP)-bench ## ours beside its rivals, one run, one thread
	$(BIN)/python benchmarks/transforms.py --save
	$(BIN)/python benchmarks/continuous.py --save
	$(BIN)/python benchmarks/mixtures.py --save

docs: $(STAMP)-docs ## the documentation as a site in docs/_build
	$(BIN)/python -m sphinx -q -W -b html docs docs/_build

clean: ## remove what the other targets made
	rm -rf .venv docs/_build runs .mypy_cache .ruff_cache .hypothesis
