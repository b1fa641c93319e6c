#!/usr/bin/env python3
"""What the way of several ranks costs on a GPU: one process alone against one that does as several do, with NCCL.

connected.py BINARY MODEL [--rounds 5] [--steps 30] [--batch 32] [--length 1024]     each round takes both in turn

The figure of a case is the median of its rounds, each the median over the steps of the log but the first five. Says too
whether both end in the same bits."""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

JOBS = {"layerwise": ["distill", "--strategy", "fix"], "finetune": ["finetune", "--epochs", "1"]}
CASES = {"alone": "", "connected": "always"}  # DOFLA_NCCL


def trained(options, job, connected):
    """Tokens a second, and a hash of the model."""
    with tempfile.TemporaryDirectory() as folder:
        log, out = Path(folder, "log.jsonl"), Path(folder, "out")
        command = [options.binary, *JOBS[job], options.model, "--device", "cuda", "--length", options.length,
                   "--batch", options.batch, "--held-out", 1, "--log", log, "--out", out]
        windows = options.batch * options.steps + 1
        command += ["--sequences", windows] if job == "finetune" else ["--steps", options.steps]
        if options.data:
            command += ["--data", options.data]
        subprocess.run(list(map(str, command)), check=True, capture_output=True,
                       env={**os.environ, "DOFLA_NCCL": CASES[connected]})
        rates = [json.loads(line)["tokens_per_second"] for line in log.read_text().splitlines()]
        return statistics.median(rates[5:]), hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--data")
    for name, default in (("--rounds", 5), ("--steps", 30), ("--batch", 32), ("--length", 1024)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    options = parser.parse_args()
    print(f"{'job':<10} {'alone':>10} {'connected':>10}   tokens/s")
    for job in options.jobs:
        found = {case: [] for case in CASES}
        for _ in range(options.rounds):
            for case, runs in found.items():
                runs.append(trained(options, job, case))
        alone, connected = (statistics.median(rate for rate, _ in runs) for runs in found.values())
        same = len({model for runs in found.values() for _, model in runs}) == 1
        print(f"{job:<10} {alone:>10.0f} {connected:>10.0f}   {connected / alone - 1:+.2%}, "
              f"{'the same bits' if same else 'OTHER BITS'}", flush=True)


if __name__ == "__main__":
    main()
