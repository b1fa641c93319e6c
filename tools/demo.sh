#!/bin/sh
# The main job on the built-in model and text: measure, plan, train, compare, then let teacher and
# student tell how the same sentence goes on. usage: tools/demo.sh DOFLA
set -eu
dofla=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo "dofla distill --cost 64 --steps 100 --batch 4 --out wiki-mini-linear"
"$dofla" distill --cost 64 --steps 100 --batch 4 --out "$folder/wiki-mini-linear"
mkdir -p out
cp "$folder/wiki-mini-linear/report.html" out/demo.html
prompt="The river rises in the mountains and"
for model in teacher student; do
  echo
  echo "$model:"
  if [ $model = teacher ]; then set --; else set -- "$folder/wiki-mini-linear"; fi
  "$dofla" generate "$@" --prompt "$prompt" --max-tokens 80 --temperature 0.8 --top-p 0.95 --seed 1
  echo
done
echo
echo "the page of this run: out/demo.html"
