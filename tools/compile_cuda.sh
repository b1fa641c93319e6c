#!/bin/sh
# Compiles the GPU code and the tests of its kernels for one architecture, as far as PTX and hardly
# optimised, and links and runs nothing: optimising takes three times as long, the assembler as long
# again, and the rest is compiled elsewhere (the other tests of a GPU by `make test`, which skips them
# without one). Says so and does nothing where there is no CUDA toolkit.
set -eu
cd "$(dirname "$0")/.."
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [ ! -x "$nvcc" ]; then
  echo "compile_cuda: skipped, there is no CUDA toolkit (nvcc) on this machine"
  exit 0
fi
build=build/cuda-check
cmake --preset cuda-check -DCMAKE_CUDA_COMPILER="$nvcc" >/dev/null
# shellcheck disable=SC2046  # every object is a word of its own
ninja -C $build $(ninja -C $build -t targets all |
  sed -n -e 's/^\(CMakeFiles[^:]*cuda[^:]*\.o\):.*/\1/p' -e 's/^\(tests[^:]*_kernels_test[^:]*\.o\):.*/\1/p')
