#!/usr/bin/env python3
"""What students lose of tokens that repeat what stood far back, and of ordinary ones.

usage: repeats.py TEACHER STUDENT... --data FILE [--length L] [--windows N] [--seed S]

The last fifth of every window of a text is replaced by passages of up to 32 tokens from all parts of the rest, word for
word (docs/sensitivity.md, "Recall"; drawn by other numbers than those of `dofla sensitivity`). Prints the mean
KL(teacher ‖ student) before and in the repeats, and both models' loss of the repeats. Needs the Python package:
make python, then PYTHONPATH=build/release/python.
"""

import argparse
import json
import random
import subprocess
from pathlib import Path

import numpy as np

import dofla

LONGEST = 32  # tokens of a passage
WARM_UP = 16  # tokens of a window that do not count


def texts(path):
    if path.suffix == ".zst":
        data = subprocess.run(["zstdcat", path], capture_output=True, check=True, text=True).stdout
    else:
        data = path.read_text(encoding="utf-8")
    lines = ".jsonl" in path.suffixes
    return [json.loads(line)["text"] for line in data.splitlines()] if lines else [data]


def windows_of(teacher, path, length, count):
    ids = []
    for text in texts(path):
        ids += teacher.encode(text).tolist()
        if len(ids) >= count * length:
            return [ids[i * length : (i + 1) * length] for i in range(count)]
    raise SystemExit(f"{path}: {len(ids)} tokens are too few for {count} windows of {length}")


def with_repeats(ids, seed):
    """The window, and how many tokens stand before its repeats."""
    numbers = random.Random(seed)
    passage = min(LONGEST, len(ids) // 8)
    count = max(1, len(ids) * 3 // 16 // passage)
    before = len(ids) - count * passage
    begins = []
    for i in range(count):  # one of every part, so that all distances occur
        part, end = before * i // count, before * (i + 1) // count
        begins.append(part + numbers.randrange(max(1, end - part - passage + 1)))
    numbers.shuffle(begins)
    return ids[:before] + [token for begin in begins for token in ids[begin : begin + passage]], before


def log_probabilities(model, ids):
    logits = model.logits([ids]).astype(np.float64).reshape(len(ids), -1)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def loss(logs, ids, begin):
    return -np.mean([logs[i, ids[i + 1]] for i in range(begin, len(ids) - 1)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("teacher")
    parser.add_argument("students", nargs="+")
    parser.add_argument("--data", type=Path, required=True, help=".txt or .jsonl, may be .zst")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    teacher = dofla.Model(options.teacher)
    windows = windows_of(teacher, options.data, options.length, options.windows)
    windows = [with_repeats(ids, options.seed + i) for i, ids in enumerate(windows)]
    wanted = [log_probabilities(teacher, ids) for ids, _ in windows]
    own = np.mean([loss(logs, ids, begin - 1) for logs, (ids, begin) in zip(wanted, windows)])
    for student in options.students:
        model = dofla.Model(student)
        figures = []
        for logs, (ids, begin) in zip(wanted, windows):
            said = log_probabilities(model, ids)
            kl = (np.exp(logs) * (logs - said)).sum(-1)
            figures.append([kl[WARM_UP : begin - 1].mean(), kl[begin - 1 : -1].mean(), loss(said, ids, begin - 1)])
        text, repeats, lost = np.mean(figures, axis=0)
        print(f"{student}: KL {text:.4f} of ordinary tokens, {repeats:.4f} of repeats; "
              f"loss of repeats {lost:.3f}, the teacher's {own:.3f}", flush=True)


if __name__ == "__main__":
    main()
