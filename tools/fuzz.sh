#!/bin/sh
# Builds every fuzz target and runs each for SECONDS. Fails on the first crash: build/fuzz then
# holds the input that caused it, NAME-crash-..., and what the fuzzer said, NAME.log.
# usage: tools/fuzz.sh SECONDS
set -eu
seconds=${1:?usage: tools/fuzz.sh SECONDS}
cd "$(dirname "$0")/.."
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
for program in build/fuzz/tests/fuzz/*_fuzz; do
  name=$(basename "$program" _fuzz)
  log=build/fuzz/$name.log
  mkdir "$found/$name"  # new inputs go to the first folder, not among the seeds
  set -- "$found/$name" "tests/fuzz/corpus/$name"
  if [ -f "tests/fuzz/$name.dict" ]; then set -- "$@" "-dict=tests/fuzz/$name.dict"; fi
  echo "$name: $seconds s"
  if ! "$program" "$@" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
      -print_final_stats=1 -artifact_prefix="build/fuzz/$name-" >"$log" 2>&1; then
    tail -n 60 "$log"
    exit 1
  fi
  grep -e executed_units -e new_units -e peak_rss "$log"
done
