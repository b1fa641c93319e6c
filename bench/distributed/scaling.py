#!/usr/bin/env python3
"""How training scales over ranks: tokens a second of R ranks of T threads each against one rank of T threads.

scaling.py BINARY [--ranks 2] [--threads 1] [--rounds 3] [--steps 12]     each round takes all cases in turn

Cases: one rank on its share of the cores, one rank on all of them, all ranks on their shares. The figure of a case is
the best of its rounds, each the median over the steps of the log but the first two. A quiet machine is needed."""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

JOBS = {
    "layerwise": ["distill", "--strategy", "fix", "--loss", "softmax"],
    "direct": ["distill", "--strategy", "fix", "--loss", "direct"],
    "finetune": ["finetune", "--epochs", "1"],
}


def tokens_per_second(binary, job, ranks, threads, steps):
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.jsonl")
        batch = 8
        command = [binary, *JOBS[job], "--length", "256", "--batch", batch, "--held-out", "1", "--log", log,
                   "--out", Path(folder, "out"), "--threads", threads]
        command += ["--sequences", batch * steps + 1] if job == "finetune" else ["--steps", steps, "--cost", "32"]
        if ranks > 1:
            command = ["mpirun", "--allow-run-as-root", "--map-by", f"slot:PE={threads}", "--bind-to", "core", "-n", ranks,
                       *command]
        subprocess.run(list(map(str, command)), check=True, capture_output=True,
                       env={**os.environ, "OMP_NUM_THREADS": str(threads)})
        rates = [json.loads(line)["tokens_per_second"] for line in log.read_text().splitlines()]
        return statistics.median(rates[2:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    for name, default in (("--ranks", 2), ("--threads", 1), ("--rounds", 3), ("--steps", 12)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    options = parser.parse_args()
    ranks, threads = options.ranks, options.threads
    cases = {"share": (1, threads), "whole": (1, ranks * threads), "ranks": (ranks, threads)}
    print(f"{'job':<10} {'1 x ' + str(threads):>9} {'1 x ' + str(ranks * threads):>9} "
          f"{str(ranks) + ' x ' + str(threads):>9}   of linear   of threads    (ranks x threads, tokens/s)")
    for job in options.jobs:
        best = dict.fromkeys(cases, 0.0)
        for _ in range(options.rounds):
            for case, (count, each) in cases.items():
                best[case] = max(best[case], tokens_per_second(options.binary, job, count, each, options.steps))
        print(f"{job:<10} {best['share']:>9.0f} {best['whole']:>9.0f} {best['ranks']:>9.0f}   "
              f"{best['ranks'] / (ranks * best['share']):>8.1%}   {best['ranks'] / best['whole']:>9.1%}", flush=True)


if __name__ == "__main__":
    main()
