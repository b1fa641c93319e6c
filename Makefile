# dofla: every step from a bare Debian 12 machine to a result.
#   make demo    install what is missing, build, run the main job on the built-in model
#   make test    the same, then every test
.PHONY: demo test build bench peers lint format fuzz packages install clean
.DEFAULT_GOAL := build

# CUDA=1 builds the GPU operations too.
PRESET ?= $(if $(CUDA),cuda,release)
BUILD := build/$(PRESET)
JOBS ?= $(shell nproc)

packages:
	@tools/install_packages.sh

build: packages
	@cmake --preset $(PRESET) >/dev/null
	@cmake --build $(BUILD) --parallel $(JOBS)

demo: build
	@tools/demo.sh $(BUILD)/dofla

test: build
	@ctest --test-dir $(BUILD) --output-on-failure --parallel $(JOBS)

# The figures need a quiet machine. gpt2-wiki is used when DOFLA_MODELS names a folder that has it.
bench: build
	@cmake --build $(BUILD) --parallel $(JOBS) --target benchmarks
	@for program in $(BUILD)/bench/*_bench; do echo "== $$(basename $$program)"; $$program || exit 1; done

# The GPU benchmark beside PyTorch's figures for the same work, as a page: CUDA=1, a GPU, and an
# interpreter with PyTorch (PYTHON=...) are needed.
RESULTS ?= bench/results/h200.md
peers: build
	@cmake --build $(BUILD) --parallel $(JOBS) --target gpu_bench
	@bench/peers/run.sh $(BUILD)/bench/gpu_bench $(RESULTS)

lint: packages
	@tools/lint.sh

format:
	@git ls-files '*.h' '*.cc' '*.cu' | xargs clang-format -i

# Every fuzz target for SECONDS (a minute each by default).
SECONDS ?= 60
fuzz: packages
	@tools/fuzz.sh $(SECONDS)

install: build
	@cmake --install $(BUILD)

clean:
	@rm -rf build
