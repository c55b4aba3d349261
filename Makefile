# Two commands for a newcomer: `make train` and `make test`. Each sets up .venv by itself, once; an installed torch that
# can use the GPU is kept (scripts/choose_torch.py).
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
# arguments for train.py, e.g. make train ARGS="--data my.yaml --epochs 50"; empty: the project's own small data set
ARGS   ?=

.PHONY: train test test-slow test-random test-torch lint lint-quick format docs bench bench-full gpu-check test-overlay test-cuda-host clean

train: $(VENV)/.run-ready
ifeq ($(strip $(ARGS)),)
	$(PY) train.py --config configs/shapes.yaml
	$(PY) detect.py --weights "$$(ls -td runs/train/shapes*/ | head -n 1)weights/best.pt" \
	    --source data/shapes/images/val --img-size 224 --name shapes
else
	$(PY) train.py $(ARGS)
endif

# two processes; the tests of a file share a process and its fixtures
PYTEST_FLAGS := -n 2 --dist loadfile --no-loadscope-reorder
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest $(PYTEST_FLAGS)

test: $(VENV)/.dev-ready
	$(PYTEST) -m "not slow" tests

# the slow tests, then the fast ones in a random order; make test-random SEED=N repeats an order
test-slow: $(VENV)/.dev-ready
	$(PYTEST) -m slow tests
	@$(MAKE) --no-print-directory test-random

SEED ?= $(shell date +%s)
test-random: $(VENV)/.dev-ready
	$(PYTEST) -m "not slow" --random-order-bucket=module --random-order-seed=$(SEED) tests

# the tests that depend on torch with another version, in .venv-torch-VERSION: make test-torch VERSION=2.8.0
OTHER := .venv-torch-$(VERSION)
test-torch:
	@test -n "$(VERSION)" || { echo "give the version: make test-torch VERSION=2.8.0" >&2; exit 2; }
	$(PYTHON) scripts/choose_torch.py --venv $(OTHER) --torch $(VERSION)
	$(OTHER)/bin/python -m pip install -q -r requirements.txt -r tests/requirements.txt -c $(OTHER)/torch-constraints.txt
	OMP_NUM_THREADS=1 $(OTHER)/bin/python -m pytest $(PYTEST_FLAGS) -m "not slow" \
	    tests/losses tests/nn tests/checkpoint tests/training

# a real checkout of upstream as a user runs it: make test-overlay REPO=DIR
test-overlay: $(VENV)/.dev-ready
	@test -n "$(REPO)" || { echo "give the checkout: make test-overlay REPO=DIR" >&2; exit 2; }
	OMP_NUM_THREADS=1 OVERLAY_REPO="$(abspath $(REPO))" $(PY) -m pytest -x tests/overlay/test_real_checkout.py

# torch's CUDA host code on a fake runtime (tests/cuda_host), in a separate environment with a CUDA build of torch (7 GB);
# CUDA_VENV=DIR uses one that exists. `make test` skips these tests: they are collected only under the fake runtime
CUDA_VENV ?= .venv-cuda
FAKE_CUDA := $(abspath $(CUDA_VENV))/fake_cuda
test-cuda-host: $(CUDA_VENV)/.cuda-ready
	$(MAKE) -s -C tests/cuda_host/runtime VENV=$(abspath $(CUDA_VENV)) OUT=$(FAKE_CUDA)
	LD_PRELOAD=$(FAKE_CUDA)/libfake_cuda.so LD_LIBRARY_PATH=$(FAKE_CUDA) PYTHONPATH=$(CURDIR)/tests/cuda_host/preload \
	  OMP_NUM_THREADS=1 $(CUDA_VENV)/bin/python -m pytest tests/cuda_host $(ARGS)

# style, which package may import which, types; pyright looks for no newer version of itself
lint: lint-quick
	$(VENV)/bin/lint-imports
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(VENV)/bin/pyright

lint-quick: $(VENV)/.dev-ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

format: $(VENV)/.dev-ready
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# the site into site/: pages, links and anchors are checked; nothing is fetched
docs: $(VENV)/.dev-ready
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

bench: $(VENV)/.run-ready
	$(PY) -m benchmarks

bench-full: $(VENV)/.run-ready
	$(PY) -m benchmarks --full

# environment, host syncs, correctness, speed and resume of this machine, in less than 5 minutes: runs/check/check.md
gpu-check: $(VENV)/.run-ready
	$(PY) -m yolov7fast check $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache build dist site *.egg-info

# torch first; the other packages are installed with a constraints file, so that none replaces it
TORCH := $(VENV)/torch-constraints.txt
$(TORCH): scripts/choose_torch.py yolov7fast/core/torch_build.py
	$(PYTHON) scripts/choose_torch.py --venv $(VENV)

$(VENV)/.run-ready: requirements.txt $(TORCH)
	$(PY) -m pip install -q -r requirements.txt -c $(TORCH)
	touch $@

CUDA_TORCH := torch==2.8.0 torchvision==0.23.0 pytest pytest-timeout transformers
$(CUDA_VENV)/.cuda-ready: requirements.txt
	test -x $(CUDA_VENV)/bin/python || $(PYTHON) -m venv $(CUDA_VENV)
	sed '/^torch/d; s/ *#.*//' $^ > $(CUDA_VENV)/requirements.txt
	$(CUDA_VENV)/bin/python -m pip install -q $(CUDA_TORCH) -r $(CUDA_VENV)/requirements.txt
	touch $@

$(VENV)/.dev-ready: tests/requirements.txt $(VENV)/.run-ready
	$(PY) -m pip install -q -r tests/requirements.txt -c $(TORCH)
	touch $@
