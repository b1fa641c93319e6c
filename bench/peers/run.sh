#!/bin/sh
# Runs gpu_bench and its PyTorch counterpart one after the other and writes PAGE from both. The
# lines that it is made from stay in build/peers. PYTHON names an interpreter that has PyTorch.
# usage: bench/peers/run.sh GPU_BENCH PAGE
set -eu
bench=${1:?usage: bench/peers/run.sh GPU_BENCH PAGE}
page=${2:?usage: bench/peers/run.sh GPU_BENCH PAGE}
peers=$(dirname "$0")
python=${PYTHON:-python3}
lines=build/peers
mkdir -p $lines
rm -f $lines/*.jsonl
"$bench" --json $lines/dofla.jsonl
"$python" "$peers/pytorch.py" >$lines/pytorch.jsonl || echo "PyTorch's figures are missing" >&2
"$python" "$peers/compare.py" $lines/dofla.jsonl $lines/pytorch.jsonl --output "$page"
