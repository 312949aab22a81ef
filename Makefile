# Everything a fresh machine with Python and make needs; the network is used for packages only.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
unexport PYTHONDONTWRITEBYTECODE  # compiled tests are kept, which halves the time to collect them

.PHONY: chaos leaderboard lowest package scale docs demo studio check test tests style types lint bench bench-gpu bench-precision models notebooks reproduce clean

$(VENV)/.made:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'gamlens needs Python 3.11 or newer: make PYTHON=python3.12 ...')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[demo]'
	touch $@

$(VENV)/.studio: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[demo,studio]'
	touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

$(VENV)/.bench: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	touch $@

# Not --quiet: mkdocs counts as failures only the warnings that it prints.
docs: $(VENV)/.dev  ## docs/reference.md from the registries, stale tutorials, then the site: site/index.html
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/tutorials/run.py --stale
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

notebooks: $(VENV)/.dev  ## run the tutorials and store what they show: docs/tutorials/*.ipynb
	$(BIN)/python docs/tutorials/run.py

demo: $(VENV)/.demo  ## explain bundled photos with the embedded model: demo/index.html
	$(BIN)/gamlens demo --out demo

studio: $(VENV)/.studio  ## a page on this machine: drop in a photo, or two, and see why
	$(BIN)/gamlens studio

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy

lint: style types

tests: $(VENV)/.dev  ## all tests, on WORKERS processes; `.venv/bin/python -m pytest` runs them in one
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(SELECT)

check: SELECT = -m "not slow"
check test: style  ## lint, types, import contract and tests: `check` those that are quick, `test` all
	$(MAKE) --no-print-directory -j2 types tests SELECT='$(SELECT)'

bench: $(VENV)/.bench  ## time and memory beside the peers and a plain forward
	$(BIN)/python benchmarks/cost.py

bench-gpu: $(VENV)/.bench  ## the same for more models and precisions, and how cost grows: a GPU, or small cases on a CPU
	mkdir -p bench
	$(BIN)/python benchmarks/gpu.py --json bench/gpu.json --markdown bench/gpu.md
	$(BIN)/python benchmarks/growth.py --json bench/growth.json
	$(BIN)/python benchmarks/growth.py --plot bench/growth.json --out bench

bench-precision: $(VENV)/.bench  ## maps in half precision beside fp32, on the real data (a GPU, or LIMIT=10)
	mkdir -p bench
	$(BIN)/python benchmarks/precision.py --json bench/precision.json --markdown bench/precision.md $(if $(LIMIT),--limit $(LIMIT) --batch $(LIMIT))

models: $(VENV)/.dev  ## every convolutional network of torchvision and timm: docs/models.md
	$(BIN)/python benchmarks/models.py --markdown docs/models.md

SHARED_DATA = $(or $(GAMLENS_DATA),../shared/data)
REPRODUCE = $(BIN)/gamlens reproduce --ilsvrc $(SHARED_DATA)/ILSVRC --model resnet=benchmarks/real.py:resnet50 \
	--model densenet=none --pairs neighbour --hold-out-by maps --out bench/reproduce $(if $(LIMIT),--limit $(LIMIT))

reproduce: $(VENV)/.dev  ## the paper's tables and the reference figures beside ours, on the real data (a GPU, or LIMIT=20)
	$(REPRODUCE) --table 1
	$(REPRODUCE) --table 2 --n 1,2,3
	$(BIN)/python benchmarks/reference_figures.py bench/reproduce

leaderboard: $(VENV)/.dev  ## the boards of docs/leaderboard.md, hours on a CPU: bench/leaderboards/*/leaderboard.html
	$(BIN)/python benchmarks/leaderboard.py

chaos: $(VENV)/.dev  ## thousands of damaged files and folders, killed commands, full disks: all must end right or be refused
	$(BIN)/python benchmarks/chaos.py $(if $(SEED),--seed $(SEED))

scale: $(VENV)/.dev  ## how runs grow, in one process and on Ray
	$(BIN)/python benchmarks/scale.py

EMPTY = .venv-empty

package: $(VENV)/.dev  ## wheel and sdist in dist/, checked, and the wheel with its demo installed in an empty environment
	rm -rf dist $(EMPTY)
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(PYTHON) -m venv $(EMPTY)
	$(EMPTY)/bin/python -m pip install --quiet "$$(ls $(CURDIR)/dist/*.whl)[demo]"
	cd dist && ../$(EMPTY)/bin/gamlens doctor && ../$(EMPTY)/bin/gamlens demo --out demo

LOWEST = .venv-lowest

lowest:  ## the quick tests with the lowest versions that pyproject.toml promises, in an environment of their own
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet -e '.[bench,dev]' -c tests/packaging/lowest.txt
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow"

clean:
	rm -rf $(VENV) $(EMPTY) $(LOWEST) dist bench demo gamlens-out site
