#!/bin/sh
# Format, include layers, lengths and clang-tidy, which takes its time: all sources go through it, or
# those that are named, or those that differ from a commit.
# usage: tools/lint.sh [SOURCE...]
#        tools/lint.sh --since COMMIT
set -eu
cd "$(dirname "$0")/.."
git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror
python3 tools/check_layers.py
python3 tools/check_length.py
# What a build without the CUDA toolkit compiles.
sources='dofla/*.cc cli/*.cc python/*.cc examples/*.cc :!dofla/ops/cuda :!dofla/core/device_cuda.cc :!dofla/distributed/nccl.cc'
set -f  # the patterns are for git
if [ "${1:-}" = --since ]; then
  set -- $(git diff --name-only --diff-filter=d "${2:?usage: tools/lint.sh --since COMMIT}" -- $sources)
  [ $# -gt 0 ] || exit 0
elif [ $# -eq 0 ]; then
  set -- $(git ls-files -- $sources)
fi
# A configuration of its own: clang cannot read g++'s precompiled headers.
cmake --preset release -B build/lint -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
  -DDOFLA_TESTS=OFF -DDOFLA_BENCH=OFF -DDOFLA_SHARED=ON -DDOFLA_PYTHON=ON >/dev/null
printf '%s\n' "$@" | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/lint
