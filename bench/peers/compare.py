#!/usr/bin/env python3
"""Writes a page of results from the JSON lines of gpu_bench and pytorch.py.

usage: compare.py JSONL... --output PAGE

A figure that comes several times counts as it came last, so that sections may be measured one by
one. What is missing is said to be missing. "## Notes" of a page that is there already, and all that
follows it, stays as it is.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    name: str  # of the figure
    title: str
    peers: tuple = ()  # PyTorch's engines that measure it


BOTH, EAGER = ("eager", "compiled"), ("eager",)

STAGES = [
    Row("teacher_forward", "teacher forward, no head, ms/sample", BOTH),
    Row("layerwise_l2", "layerwise step, l2, ms/sample", BOTH),
    Row("layerwise_softmax", "layerwise step, softmax, ms/sample", BOTH),
    Row("layerwise_attention_mse", "layerwise step, attention-mse, ms/sample"),
    Row("layerwise_l2_pairs", "layerwise step on pairs, l2, ms/sample"),
    Row("layerwise_softmax_pairs", "layerwise step on pairs, softmax, ms/sample"),
    Row("layerwise_attention_mse_pairs", "layerwise step on pairs, attention-mse, ms/sample"),
    Row("direct_step", "direct step, ms/sample", BOTH),
    Row("finetune_gradients", "fine-tuning, gradients of everything, ms/sample"),
    Row("finetune_optimizer", "fine-tuning, AdamW on everything, ms"),
    Row("dof", "degrees of freedom, 144 heads, J = 2048, ms", EAGER),
    Row("linear_prefill", "linear prefill, ms/sample", BOTH),
    Row("linear_decode", "linear decode, batch 1, ms/token", BOTH),
    Row("linear_decode_64", "linear decode, batch 64, ms/token"),
]
OPERATIONS = [
    Row("softmax_attention", "softmax attention, forward", EAGER),
    Row("softmax_attention_gradients", "softmax attention, forward and backward", EAGER),
    Row("linear_attention", "linear attention, forward"),
    Row("linear_attention_gradients", "linear attention, forward and backward"),
    Row("feature_loss_l2", "feature loss with gradients, l2"),
    Row("feature_loss_softmax", "feature loss with gradients, softmax"),
    Row("feature_loss_attention_mse", "feature loss with gradients, attention-mse"),
]

# Untied features alone, beside 64 exact keys in every head, and beside 24 to 144 of them by head.
STUDENTS = ("untied", "hybrid", "by_head")
STUDENT_WORK = {
    "layerwise_softmax": "layerwise step, softmax, ms/sample",
    "direct_step": "direct step, ms/sample",
    "prefill": "prefill, ms/sample",
    "decode": "decode, batch 1, ms/token",
    "decode_32": "decode, batch 32, ms/token",
}
STREAMS = (1, 16, 32, 64, 256, 1024)


def read_figures(paths):
    """Lines by (engine, name)."""
    figures = {}
    for path in paths:
        for number, text in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
            try:
                line = json.loads(text)
                figures[line["engine"], line["name"]] = line
            except (ValueError, KeyError, TypeError):
                sys.exit(f"{path}:{number}: not a line of gpu_bench or pytorch.py")
    return figures


def milliseconds(figures, engine, name):
    return figures.get((engine, name), {}).get("milliseconds")


def share_of_peak(figure, ceilings):
    """Time at the ceiling as a share of the time taken, and which ceiling it is."""
    least = {
        "product": figure.get("operations", 0) / ceilings["product"],
        "memory": figure.get("bytes", 0) / ceilings["copy"],
    }
    bound = max(least, key=least.get)
    if "milliseconds" not in figure or least[bound] == 0:
        return "–"
    return f"{100 * least[bound] / (1e-3 * figure['milliseconds']):.0f} % ({bound})"


def rounded(value):
    """Three digits that count."""
    return f"{value:#.3g}".rstrip(".") if value < 1000 else f"{value:.0f}"


def cell(figures, engine, row):
    if engine != "dofla" and engine not in row.peers:
        return "–"
    value = milliseconds(figures, engine, row.name)
    return "missing" if value is None else rounded(value)


def ratio(figures, row):
    """How many times as long the faster of PyTorch's two takes."""
    ours = milliseconds(figures, "dofla", row.name)
    peers = [milliseconds(figures, engine, row.name) for engine in row.peers]
    peers = [value for value in peers if value is not None]
    return f"{min(peers) / ours:.2f}" if peers and ours is not None else "–"


def table(figures, rows, ceilings):
    head = ["", "dofla", "PyTorch eager", "compiled", "PyTorch / dofla", "share of peak"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [cell(figures, engine, row) for engine in ("dofla", *BOTH)]
        share = share_of_peak(figures.get(("dofla", row.name), {}), ceilings)
        lines.append(f"| {' | '.join([row.title, *cells, ratio(figures, row), share])} |")
    return lines


def students_table(figures):
    lines = ["|  | features alone | 64 exact keys | by head | ratio | ratio |", "|---|---|---|---|---|---|"]
    for work, title in STUDENT_WORK.items():
        times = [milliseconds(figures, "dofla", f"{student}_{work}") for student in STUDENTS]
        if None in times:
            continue
        cells = [rounded(time) for time in times] + [f"{time / times[0]:.2f}" for time in times[1:]]
        lines.append(f"| {' | '.join([title, *cells])} |")
    return lines


def streams_table(figures):
    lines = ["| sequences | linear, ms | tokens/s | share of peak | softmax, ms | tokens/s |", "|---|---|---|---|---|---|"]
    ceilings = figures["dofla", "environment"]
    for count in STREAMS:
        name = "decode" if count == 1 else f"decode_{count}"
        linear = figures.get(("dofla", f"linear_{name}"), {})
        times = [linear.get("milliseconds"), milliseconds(figures, "dofla", f"softmax_{name}")]
        if times[0] is None:
            continue
        cells = [("–", "–") if t is None else (rounded(t), f"{1e3 * count / t:,.0f}") for t in times]
        lines.append(f"| {count:,} | {' | '.join([*cells[0], share_of_peak(linear, ceilings), *cells[1]])} |")
    return lines


def ceilings_text(line):
    return f"{line['product'] / 1e12:.0f} TFLOP/s and {line['copy'] / 1e12:.2f} TB/s"


def reasons(figures):
    return [
        f"- {name} ({engine}): {line['missing']}"
        for (engine, name), line in figures.items()
        if "missing" in line
    ]


def page(figures, notes):
    ours = figures["dofla", "environment"]
    version = figures.get(("eager", "environment"), {}).get("version", "missing")
    peak = figures.get(("eager", "ceilings"))
    lines = [
        f"# {ours['device']}",
        "",
        "    make peers CUDA=1 DOFLA_MODELS=folder",
        "",
        "GPT-2 small, 1024 tokens a sample, batch 32, 64 features a head, the best of several runs;",
        "both sides one after the other on the same machine.",
        "",
        f"- Weights: {ours['model']}",
        f"- PyTorch: {version}",
        f"- Peaks: {ceilings_text(ours)}" + (f"; PyTorch's {ceilings_text(peak)}" if peak else ""),
        "",
        "The peaks are a bf16 product of 8192 x 8192 and a copy of 1 GiB in the same run, of random",
        "numbers. A share of the peak is the time that the least possible work would take there",
        "(matrix products of causal pairs, nothing twice; or the bytes that must be read and written)",
        "in the time that was taken: `dofla/model/operations.h`. PyTorch's losses take all pairs and its",
        "exponentials are not kept from overflowing: `bench/peers/pytorch.py`.",
        "",
        *table(figures, STAGES, ours),
        "",
        "The operations alone, once for each of the 12 layers, ms/sample:",
        "",
        *table(figures, OPERATIONS, ours),
    ]
    if len(students_table(figures)) > 2:
        lines += ["", "Students with untied features: what exact keys beside them cost.", "",
                  *students_table(figures)]
    if len(streams_table(figures)) > 2:
        lines += ["", "One token of many sequences, after a few tokens each:", "", *streams_table(figures)]
    if reasons(figures):
        lines += ["", "Missing:", "", *reasons(figures)]
    return "\n".join(lines) + "\n" + notes


def kept_notes(path):
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    at = text.find("\n## Notes\n")
    return text[at:] if at >= 0 else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jsonl", nargs="+", help="what gpu_bench --json and pytorch.py wrote")
    parser.add_argument("--output", type=Path, required=True, help="the page to write")
    options = parser.parse_args()
    figures = read_figures(options.jsonl)
    if ("dofla", "environment") not in figures:
        sys.exit("compare.py: no figures of gpu_bench among " + ", ".join(options.jsonl))
    text = page(figures, kept_notes(options.output))
    options.output.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
