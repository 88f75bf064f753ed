# Everything happens in one virtual environment, made on first use: `make demo` and `make test` need nothing before.

VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
SOURCES = pyproject.toml $(shell find ffi jax_nvfp4 -type f ! -path '*/_native/*' ! -name '*.pyc')
READY = $(VENV)/ready
JOBS ?= $(shell nproc)
ARCHS ?= all

.PHONY: demo test test-full lint kernels bench native clean

demo: $(READY)
	$(BIN)/python examples/train_lm.py

test: $(READY)
	$(BIN)/pytest -n $(JOBS) -m "not full" tests
	JAX_ENABLE_X64=1 $(BIN)/pytest -n $(JOBS) -m "not full" tests/ops tests/transforms

test-full: $(READY)
	$(BIN)/pytest -n $(JOBS) tests
	JAX_ENABLE_X64=1 $(BIN)/pytest -n $(JOBS) tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python bench/cpu.py

# Both native libraries into the source tree, rebuilding only what changed: for work on ffi/ and kernels/ with
# PYTHONPATH=. (`make kernels`), or the CPU library alone (`make native`).
kernels: build/env/ready
	build/env/bin/cmake -S ffi -B build/dev -G Ninja -DPython_EXECUTABLE=$(CURDIR)/build/env/bin/python \
	  -DJAX_NVFP4_CUDA_ARCHS="$(ARCHS)"
	build/env/bin/cmake --build build/dev && build/env/bin/cmake --install build/dev --prefix .

native: build/env/ready
	build/env/bin/cmake -S ffi -B build/cpu -G Ninja -DPython_EXECUTABLE=$(CURDIR)/build/env/bin/python -DJAX_NVFP4_CUDA_ARCHS=
	build/env/bin/cmake --build build/cpu && build/env/bin/cmake --install build/cpu --prefix .

build/env/ready: pyproject.toml | system
	$(PYTHON) -m venv build/env
	build/env/bin/pip install -q --upgrade pip
	$(PYTHON) -c "import tomllib; print('\n'.join(tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires']))" \
	  > build/requirements.txt
	build/env/bin/pip install -q cmake ninja -r build/requirements.txt
	touch build/env/ready

$(READY): $(SOURCES) | system
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q '.[test,lint]'
	touch $(READY)

# A bare Debian has neither a compiler nor venv; root may install them, anyone else is told to.
.PHONY: system
system:
	@command -v g++ >/dev/null && $(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -q && apt-get install -qy g++ python3-venv; } || { \
	  echo "please install a C++17 compiler and Python's venv: sudo apt-get install g++ python3-venv"; exit 1; }

clean:
	rm -rf $(VENV) build dist jax_nvfp4/_native
