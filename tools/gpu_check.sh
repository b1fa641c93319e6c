#!/bin/sh
# The GPU tests: plainly, then those of the operations under compute-sanitizer, which looks for
# wrong addresses (memcheck) and races in shared memory (racecheck). Stops at the first failure.
# usage: tools/gpu_check.sh [BUILD]     the folder of a build with CUDA (left out: build/cuda)
set -eu
cd "$(dirname "$0")/.."
tests=${1:-build/cuda}/tests/dofla_gpu_tests
log=$(mktemp)
trap 'rm -f "$log"' EXIT

stop() {
  echo "gpu_check: $*" >&2
  exit 1
}

# Shows the end of what was said where a command fails or every test was skipped.
check() {
  what=$1
  shift
  echo "gpu_check: $what"
  "$@" >"$log" 2>&1 || { tail -n 60 "$log"; stop "$what failed"; }
  if grep -q '^\[  PASSED  \] 0 tests' "$log"; then
    tail -n 5 "$log"
    stop "$what: no test ran"
  fi
  grep -e '^\[  PASSED' -e '^\[  SKIPPED' -e 'SUMMARY' "$log"
}

[ -x "$tests" ] || stop "$tests is not there: make build-tests CUDA=1"
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || stop "compute-sanitizer, a part of the CUDA toolkit, is not there"

# Whole models take too long under the sanitizer, and launch no other kernels.
suites=$(sed -n 's/^TEST_F(\(\w*\),.*/\1.*/p' tests/ops/cuda/*_test.cc | sort -u | paste -sd:)

check "all GPU tests" "$tests"
check "memcheck, operations" "$sanitizer" --tool memcheck --error-exitcode 1 "$tests" \
  --gtest_filter="$suites"
# Far slower than memcheck: tests named ...Large take too long, and launch no kernels that use shared
# memory but those that the others launch.
# One suite after another, so that what it found is there as it comes.
for suite in $(echo "$suites" | tr : ' '); do
  check "racecheck, ${suite%.\*}" "$sanitizer" --tool racecheck --error-exitcode 1 "$tests" \
    --gtest_filter="$suite-*Large"
done
