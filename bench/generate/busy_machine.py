#!/usr/bin/env python3
"""How generation keeps up beside other programs: with all threads against one thread.

Runs `dofla generate` on the built-in model beside none, two and four busy processes, by turns with
one thread and with the default, and prints medians of tokens a second and their ratio. A ratio below
0.8 beside load, or below 1 on a quiet machine, is a loss by threads that wait for each other.

usage: busy_machine.py [DOFLA] [--rounds N] [--tokens N] [--load N...]
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess


def spin():
    while True:
        pass


def tokens_per_second(binary, tokens, threads):
    command = [binary, "generate", "--prompt", "The river", "--json", "--max-tokens", str(tokens)]
    if threads:
        command += ["--threads", str(threads)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return json.loads(out)["tokens_per_second"]


def measure(binary, tokens, rounds, load):
    """Medians with one thread and with the default, and that of the ratios of neighbouring runs."""
    busy = [multiprocessing.Process(target=spin, daemon=True) for _ in range(load)]
    for process in busy:
        process.start()
    try:
        one, default = [], []
        for _ in range(rounds):
            one.append(tokens_per_second(binary, tokens, 1))
            default.append(tokens_per_second(binary, tokens, 0))
    finally:
        for process in busy:
            process.kill()
            process.join()
    ratios = [d / o for d, o in zip(default, one)]
    return statistics.median(one), statistics.median(default), statistics.median(ratios), min(ratios)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", nargs="?", default="build/release/dofla")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--load", type=int, nargs="*", default=[0, 2, 4])
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, {args.rounds} rounds of {args.tokens} tokens")
    print("busy processes   one thread      default   ratio   least")
    for load in args.load:
        one, default, ratio, least = measure(args.binary, args.tokens, args.rounds, load)
        print(f"{load:14} {one:8.0f} tok/s {default:6.0f} tok/s {ratio:7.2f} {least:7.2f}", flush=True)


if __name__ == "__main__":
    main()
