# make demo    set everything up and train a classifier on `tenon`
# make test    set everything up and run the tests; `make test-targets` runs those of the device
#              on the tests' other targets, `make test-long` all variations, and what takes long
# make test-distributed   training on 2 and 4 ranks for longer, and 20 runs with a rank killed
# make test-frameworks     accelerate, transformers and Lightning on the device; installs them
# make test-torchcts       TorchCTS, a conformance suite by others; installs it apart. A part of it:
#              `make test-torchcts TORCHCTS_OPTIONS='-k quantized'` (see --help)
# make test-pytorch PYTORCH_SOURCES=path   PyTorch's device-generic test files, out of its sources
# make smoke   two minutes of the tests
# make test-newest         the tests with the newest PyTorch, gigabytes that it installs apart;
#              `make test-newest NEWEST=2.14.1` takes another release (docs/versions.md)
# make smoke-newest        two minutes of them there
# make runtime the library that runs plans without Python and PyTorch, and its tests, which need
#              neither; `make runtime SANITIZE=address,undefined` has the sanitizers watch these
# make products  what has oneDNN multiply in exported programs, once libdnnl-dev is installed; the
#              build does it too, where that was installed before
# make check   ruff, mypy, clang-format and the manifest's check
# make format  let ruff and clang-format rewrite the sources
# make docs    the documents and the reference as a site, build/site/index.html; a dead link is an
#              error. It installs what builds the site apart
# make bench   the compiler beside eager PyTorch and Inductor, on the CPU
# make bench-export    exported programs beside AOTInductor, ONNX Runtime and ExecuTorch, which it
#              installs apart
# make bench-scripts   whole scripts, from start to end, in processes of their own
# make wheel   build a wheel into dist/

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CPP := $(shell find csrc tests/runtime torch_tenon/targets/*/csrc torch_tenon/targets/*/native torch_tenon/targets/cpu/onednn -name '*.cpp' -o -name '*.h')
BUILDABLE := $(VENV)/buildable
INSTALLED := $(VENV)/installed
FRAMEWORKS := $(VENV)/frameworks
TORCHCTS := $(VENV)/torchcts
RIVALS := $(VENV)/rivals
DOCS := $(VENV)/docs
BUILT := $(VENV)/built
NEWEST = $(shell $(PYTHON) -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["tool"]["torch-tenon"]["releases"][-1])')
# What is built for it: a copy of the sources, pinned to that release, and an environment for each.
NEWEST_TREE = build/torch-$(NEWEST)
NEWEST_VENV = $(CURDIR)/.venv-torch-$(NEWEST)
# Three processes of tests, a builder and its compilers share the processors, of which some tests
# leave one idle: threads that wait for each other sleep. All of them read the same modules, so
# bytecode is kept also where the environment says otherwise. tests/conftest.py orders the files.
# A process that crashes ends the run: with another one in its place the run would never end.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 3 --dist loadfile \
	--no-loadscope-reorder --max-worker-restart 0
# While the extension is built, `import torch` must not try to load it.
NO_AUTOLOAD := TORCH_DEVICE_BACKEND_AUTOLOAD=0
BUILD_REQUIREMENTS := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])

.PHONY: demo test smoke runtime products test-long test-slow test-targets test-distributed test-frameworks \
	test-torchcts test-pytorch test-newest smoke-newest check format docs bench \
	bench-scripts bench-export wheel clean
.DELETE_ON_ERROR:

demo: $(BUILT)
	$(BIN)/python examples/digits.py

test: $(BUILT)
	$(PYTEST)

smoke: $(BUILT)
	$(PYTEST) -m smoke

test-long: $(BUILT)
	$(PYTEST) -m "" --whole

test-slow: $(BUILT)
	$(PYTEST) -m slow --turn all

test-targets: $(BUILT)
	for target in remote.py:RemoteTarget asynchronous.py:AsynchronousTarget; do \
		TENON_TARGET=$(CURDIR)/tests/targets/$$target \
			$(PYTEST) -m "" --whole || exit 1; \
	done

runtime:
	$(MAKE) -C csrc/runtime test

products: $(BUILT)
	$(NO_AUTOLOAD) $(BIN)/python setup.py -q build_products

test-distributed: $(BUILT)
	$(BIN)/python -m tests.distributed.long

test-frameworks: $(BUILT) $(FRAMEWORKS)
	$(BIN)/python -m pytest tests/frameworks

# It says that it is for older releases of PyTorch, and needs nothing that is not there.
test-torchcts: $(BUILT) $(TORCHCTS)/installed
	OMP_WAIT_POLICY=passive PYTHONPATH=$(abspath $(TORCHCTS)) \
		$(BIN)/python -m torch_tenon.testing.others torchcts $(TORCHCTS_OPTIONS)

test-pytorch: $(BUILT)
	OMP_WAIT_POLICY=passive PYTORCH_SOURCES="$(PYTORCH_SOURCES)" \
		$(BIN)/python -m torch_tenon.testing.others pytorch $(PYTORCH_OPTIONS)

# The copy keeps its objects and the sources keep their times: ninja rebuilds what changed.
test-newest smoke-newest: %-newest:
	mkdir -p $(NEWEST_TREE)
	find $(NEWEST_TREE) -type f ! -path '$(NEWEST_TREE)/build/*' ! -name '*.so' ! -name '*.json' -delete
	tar -c --exclude='./.*' --exclude=./build --exclude='*.so' --exclude=__pycache__ \
		--exclude=built_for.json --exclude=manifest.json . | tar -x -C $(NEWEST_TREE)
	sed -i 's/"torch==[^"]*"/"torch==$(NEWEST)"/' $(NEWEST_TREE)/pyproject.toml
	$(MAKE) -C $(NEWEST_TREE) VENV=$(NEWEST_VENV) $*

check: $(BUILT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/tenon ops --check

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

# The reference is written where the device can be imported, the site where its builder is.
docs: $(BUILT) $(DOCS)/installed
	rm -rf build/reference
	$(BIN)/python docs/site/api_reference.py build/reference
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

bench: $(BUILT)
	$(BIN)/python -m benchmarks.bench

bench-export: $(BUILT) $(RIVALS)/installed
	$(BIN)/python -m benchmarks.export.run

bench-scripts: $(BUILT)
	$(BIN)/python -m benchmarks.scripts.run

wheel: $(BUILDABLE)
	$(NO_AUTOLOAD) $(BIN)/pip wheel --no-build-isolation --no-deps -w dist .

# What a build needs, and no developer's tools. PyTorch comes first and by its exact version: the
# extension is built against the one installed.
$(BUILDABLE): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q $$($(PYTHON) -c '$(BUILD_REQUIREMENTS)')
	touch $@

$(INSTALLED): $(BUILDABLE) setup.py
	$(NO_AUTOLOAD) TORCH_TENON_BUILT_IN_PLACE=1 $(BIN)/pip install -q --no-build-isolation -e '.[dev]'
	touch $@

$(FRAMEWORKS): $(INSTALLED)
	$(NO_AUTOLOAD) TORCH_TENON_BUILT_IN_PLACE=1 $(BIN)/pip install -q --no-build-isolation -e '.[frameworks]'
	touch $@

$(TORCHCTS)/installed: $(INSTALLED)
	rm -rf $(TORCHCTS)
	$(BIN)/pip install -q --no-deps --target $(TORCHCTS) \
		$$($(PYTHON) -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["tool"]["torch-tenon"]["torchcts"])')
	touch $@

$(RIVALS)/installed: $(INSTALLED)
	rm -rf $(RIVALS)
	$(BIN)/pip install -q --no-deps --target $(RIVALS) \
		$$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["tool"]["torch-tenon"]["rivals"])')
	touch $@

$(DOCS)/installed: pyproject.toml
	rm -rf $(DOCS)
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install -q \
		$$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	touch $@

$(BUILT): $(INSTALLED) $(CPP) include/tenon.h
	$(NO_AUTOLOAD) $(BIN)/python setup.py -q build_ext --inplace > $(VENV)/build.log || { cat $(VENV)/build.log; false; }
	-$(BIN)/tenon warm
	touch $@

clean:
	rm -rf torch_tenon/targets/cpu/set_up build dist *.egg-info torch_tenon/_C*.so torch_tenon/targets/*/libtenon_*.so torch_tenon/runtime/*.so torch_tenon/built_for.json torch_tenon/ops/manifest.json $(BUILT)
