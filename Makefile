# dofla: every step from a bare Debian 12 machine to a result. Each installs the packages it needs.
#   make demo      build the binary and run the main job on the built-in model
#   make test      build everything and run every test
#   make python    the Python package, in build/release/python
#   make install   the binary, the library, its headers and the Python package (PREFIX=/usr/local)
#   make package   the same as Debian packages
.PHONY: build demo python build-tests test bench peers lint format fuzz packages installable install package clean
.DEFAULT_GOAL := build

# CUDA=1 builds the GPU operations too.
PRESET ?= $(if $(CUDA),cuda,release)
BUILD := build/$(PRESET)
JOBS ?= $(shell nproc)
# A first configuration is for building everything once: the sources of a folder together, and
# without what only tests and benchmarks need; they switch it on.
CONFIGURE = cmake --preset $(PRESET) \
  $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DDOFLA_TESTS=OFF -DDOFLA_BENCH=OFF \
    -DDOFLA_SHARED=ON -DDOFLA_UNITY=ON)

# The packages of every step, for a machine that is to do them all.
packages:
	@tools/install_packages.sh

# The binary and the library.
build:
	@tools/install_packages.sh build
	@$(CONFIGURE) >/dev/null
	@cmake --build $(BUILD) --parallel $(JOBS) --target dofla_cli dofla

demo:
	@tools/install_packages.sh build
	@$(CONFIGURE) >/dev/null
	@cmake --build $(BUILD) --parallel $(JOBS) --target dofla_cli
	@tools/demo.sh $(BUILD)/dofla

python:
	@tools/install_packages.sh build python
	@$(CONFIGURE) -DDOFLA_SHARED=ON -DDOFLA_PYTHON=ON >/dev/null
	@cmake --build $(BUILD) --parallel $(JOBS) --target python_package

build-tests:
	@tools/install_packages.sh build test package python
	@$(CONFIGURE) -DDOFLA_TESTS=ON -DDOFLA_PYTHON=ON >/dev/null
	@cmake --build $(BUILD) --parallel $(JOBS)

test: build-tests
	@ctest --test-dir $(BUILD) --output-on-failure --parallel $(JOBS)

# The figures need a quiet machine. gpt2-wiki is used when DOFLA_MODELS names a folder that has it.
bench:
	@tools/install_packages.sh build bench
	@$(CONFIGURE) -DDOFLA_BENCH=ON >/dev/null
	@cmake --build $(BUILD) --parallel $(JOBS) --target benchmarks
	@for program in $(BUILD)/bench/*_bench; do echo "== $$(basename $$program)"; $$program || exit 1; done

# The GPU benchmark beside PyTorch's figures for the same work, as a page: CUDA=1, a GPU, and an
# interpreter with PyTorch (PYTHON=...) are needed.
RESULTS ?= bench/results/h200.md
peers:
	@tools/install_packages.sh build bench
	@$(CONFIGURE) -DDOFLA_BENCH=ON >/dev/null
	@cmake --build $(BUILD) --parallel $(JOBS) --target gpu_bench
	@bench/peers/run.sh $(BUILD)/bench/gpu_bench $(RESULTS)

lint:
	@tools/install_packages.sh build lint python
	@tools/lint.sh

format:
	@tools/install_packages.sh lint
	@git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format -i

# Every fuzz target for SECONDS (a minute each by default).
SECONDS ?= 60
fuzz:
	@tools/install_packages.sh build lint
	@tools/fuzz.sh $(SECONDS)

# What is installed: the binary, the libraries, the man pages, the Python package.
installable:
	@tools/install_packages.sh build package python
	@$(CONFIGURE) -DDOFLA_SHARED=ON -DDOFLA_PYTHON=ON >/dev/null
	@cmake --build $(BUILD) --parallel $(JOBS) --target dofla_cli dofla dofla_shared man_pages python_package

# PREFIX=DIR installs there (left out: /usr/local).
install: installable
	@cmake --install $(BUILD) $(if $(PREFIX),--prefix $(PREFIX))

# Debian packages, in out/.
package: installable
	@cpack --config $(BUILD)/CPackConfig.cmake -B out && rm -r out/_CPack_Packages

clean:
	@rm -rf build
