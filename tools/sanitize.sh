#!/bin/sh
# Every test of files and buffers under the address and undefined-behaviour sanitizers, with fresh
# tensors full of NaN. Command lines, whole models and training are left to the release build, where
# they run in seconds: tests/CMakeLists.txt says which files are built. By clang, which takes two
# thirds of g++'s time for it.
set -eu
cd "$(dirname "$0")/.."
cmake --preset asan-ubsan >/dev/null
cmake --build --preset asan-ubsan --target dofla_sanitized_tests
export OMP_WAIT_POLICY=passive
# The JIT of oneDNN and the pools of OpenMP are never freed: leaks are not ours to find here.
export ASAN_OPTIONS=detect_leaks=0
# Every core takes its share of the tests.
GTEST_TOTAL_SHARDS=$(nproc)
export GTEST_TOTAL_SHARDS
shares=""
for share in $(seq 0 $((GTEST_TOTAL_SHARDS - 1))); do
  # The test left out draws millions of numbers and reads no file.
  GTEST_SHARD_INDEX=$share build/asan-ubsan/tests/dofla_sanitized_tests --gtest_brief=1 \
    --gtest_filter='-PositiveFeatures.AreUnbiasedBeforeTraining' &
  shares="$shares $!"
done
for share in $shares; do wait "$share"; done
# The engine, the server and the readers of text under the thread sanitizer, in the build of `make test`: OpenMP's threads are not built
# for it, and left out.
unset GTEST_TOTAL_SHARDS
cmake --preset release -DDOFLA_TESTS=ON >/dev/null
cmake --build --preset release --target dofla_threaded_tests
OMP_NUM_THREADS=1 build/release/tests/dofla_threaded_tests --gtest_brief=1 \
  --gtest_filter='EngineScheduling.*:Turn.*:Engine.*:*/States.*:HttpServerTest.*:Service*:Tokenize.*:TokenStores.*:WindowSet.*:WindowsAhead.*'
