#!/usr/bin/env python3
"""How well degrees of freedom foretell where features pay.

usage: rank_correlation.py SENSITIVITY.json DOF.json...

Spearman's rank correlation, over the layers and over the heads, of N_λ with the loss that is saved
between C/4 and 4C features (the second and the last rung of the ladder), for powers of two of λ.
DOF.json must have been measured on a CPU, which keeps spectra.
"""

import json
import sys
from pathlib import Path


def ranks(values):
    """From 1; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    result = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end + 1 < len(order) and values[order[end + 1]] == values[order[begin]]:
            end += 1
        for i in range(begin, end + 1):
            result[order[i]] = (begin + end) / 2 + 1
        begin = end + 1
    return result


def correlation(a, b):
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    along = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    return along / (sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)) ** 0.5


def degrees_of_freedom(head, ridge):
    """The mean over the draws."""
    draws = [sum(e / (e + ridge) for e in spectrum) for spectrum in head["spectra"]]
    return sum(draws) / len(draws)


def main(sensitivity_file, *dof_files):
    sensitivity = json.loads(Path(sensitivity_file).read_text())
    rungs = sensitivity["ladder"]
    print(f"loss saved from M = {rungs[1]} to {rungs[-1]}; Spearman over layers, over heads")
    saved = [layer["added"][1] - layer["added"][-1] for layer in sensitivity["layers"]]
    saved_heads = [h[1] - h[-1] for layer in sensitivity["layers"] for h in layer["heads"]]
    for name in dof_files:
        dof = json.loads(Path(name).read_text())
        if dof["feature_heads"] != sensitivity["feature_heads"]:
            sys.exit(f"{name}: measured for other heads than {sensitivity_file}")
        for power in range(0, -17, -2):
            heads = [[degrees_of_freedom(h, 2.0**power) for h in layer["heads"]]
                     for layer in dof["layers"]]
            of_layers = correlation(ranks([max(row) for row in heads]), ranks(saved))
            of_heads = correlation(ranks(sum(heads, [])), ranks(saved_heads))
            print(f"{dof['coordinates']:10} λ = 2^{power:<4} {of_layers:6.2f} {of_heads:6.2f}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__.strip())
    main(*sys.argv[1:])
