#!/bin/sh
# Format, include layers and clang-tidy. With arguments only these sources go through clang-tidy,
# which takes its time. usage: tools/lint.sh [SOURCE...]
set -eu
cd "$(dirname "$0")/.."
git ls-files '*.h' '*.cc' | xargs clang-format --dry-run --Werror
python3 tools/check_layers.py
# A configuration of its own: clang cannot read g++'s precompiled headers.
cmake --preset release -B build/lint -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
[ $# -gt 0 ] || set -- $(git ls-files 'dofla/*.cc' 'cli/*.cc')
printf '%s\n' "$@" | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/lint
