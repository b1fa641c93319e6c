#!/bin/sh
# The main job on the built-in model and text: measure, plan, train, compare, then let teacher and
# student tell how the same sentence goes on. The student stays in OUT, which is made anew.
# usage: tools/demo.sh DOFLA [OUT] [STEPS]     left out: out/wiki-mini-hybrid, 40 steps
set -eu
dofla=${1:?usage: tools/demo.sh DOFLA [OUT] [STEPS]}
out=${2:-out/wiki-mini-hybrid}
steps=${3:-40}
mkdir -p "$(dirname "$out")"
rm -rf "$out"
echo "dofla distill --memory 400kB --steps $steps --batch 4 --out $out"
"$dofla" distill --memory 400kB --steps "$steps" --batch 4 --out "$out"
prompt="The river rises in the mountains and"
for model in teacher student; do
  echo
  echo "$model:"
  if [ $model = teacher ]; then set --; else set -- "$out"; fi
  "$dofla" generate "$@" --prompt "$prompt" --max-tokens 80 --temperature 0.8 --top-p 0.95 --seed 1
  echo
done
echo
echo "the student:          $out"
echo "the page of this run: file://$(realpath "$out")/report.html"
