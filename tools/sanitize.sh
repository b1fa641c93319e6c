#!/bin/sh
# Every test of files, arguments and buffers under the address and undefined-behaviour sanitizers,
# with fresh tensors full of NaN. The whole-model and training tests are left to the release build,
# where they run in seconds.
set -eu
cd "$(dirname "$0")/.."
cmake --preset asan-ubsan >/dev/null
cmake --build --preset asan-ubsan --target dofla_tests
export OMP_WAIT_POLICY=passive
# The JIT of oneDNN and the pools of OpenMP are never freed: leaks are not ours to find here.
export ASAN_OPTIONS=detect_leaks=0
build/asan-ubsan/tests/dofla_tests --gtest_brief=1 \
  --gtest_filter='-*Training*:*Finetuning*:*Reproduce*:*LinearModel*:*UnbiasedWithin*:*Cli*'
