# Everything a fresh machine with Python and make needs; the network is used for packages only.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: fuzz scale demo studio test lint bench bench-gpu bench-precision models reproduce clean

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

demo: $(VENV)/.demo  ## explain bundled photos with the embedded model: demo/index.html
	$(BIN)/gamlens demo --out demo

studio: $(VENV)/.studio  ## a page on this machine: drop in a photo, or two, and see why
	$(BIN)/gamlens studio

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint  ## lint, types, import contract and all tests
	$(BIN)/python -m pytest

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

reproduce: $(VENV)/.dev  ## the reference figures beside ours, on the real data (a GPU, or --limit)
	$(BIN)/python benchmarks/reproduce.py

fuzz: $(VENV)/.dev  ## 5,000 mangled image files through an evaluation
	$(BIN)/python benchmarks/fuzz.py

scale: $(VENV)/.dev  ## how runs grow, in one process and on Ray
	$(BIN)/python benchmarks/scale.py

clean:
	rm -rf $(VENV) bench demo gamlens-out
