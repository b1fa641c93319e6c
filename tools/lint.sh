#!/bin/sh
# Format, include layers and clang-tidy. BUILD is a configured build folder.
set -eu
build=$1
git ls-files '*.h' '*.cc' | xargs clang-format --dry-run --Werror
python3 tools/check_layers.py
git ls-files 'dofla/*.cc' 'cli/*.cc' | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p "$build"
