#!/bin/sh
# Compiles and links the GPU code and its tests for one architecture, as far as PTX, and runs
# nothing: what the assembler makes of it takes as long again. Says so and does nothing where there
# is no CUDA toolkit.
set -eu
cd "$(dirname "$0")/.."
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [ ! -x "$nvcc" ]; then
  echo "compile_cuda: skipped, there is no CUDA toolkit (nvcc) on this machine"
  exit 0
fi
cmake --preset cuda-check -DCMAKE_CUDA_COMPILER="$nvcc" >/dev/null
cmake --build --preset cuda-check --target dofla_gpu_tests
