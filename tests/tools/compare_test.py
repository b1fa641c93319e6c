#!/usr/bin/env python3
"""The page of GPU figures: ratios, shares of the peak, and what is missing said to be missing."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

COMPARE = Path(__file__).resolve().parents[2] / "bench" / "peers" / "compare.py"
ENVIRONMENT = {"engine": "dofla", "name": "environment", "device": "a GPU", "model": "gpt2-wiki",
               "product": 5e14, "copy": 4e12}


def figure(engine, name, milliseconds, **work):
    return {"engine": engine, "name": name, "milliseconds": milliseconds, "per": "sample", **work}


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.lines, self.page = Path(folder.name, "lines.jsonl"), Path(folder.name, "page.md")

    def compare(self, *figures):
        self.lines.write_text("".join(json.dumps(line) + "\n" for line in figures))
        command = [sys.executable, COMPARE, self.lines, "--output", self.page]
        return subprocess.run(command, capture_output=True, text=True)

    def row(self, title):
        return next(line for line in self.page.read_text().splitlines() if title in line)

    def test_ratio_is_to_the_faster_of_both(self):
        self.compare(ENVIRONMENT, figure("dofla", "direct_step", 2.0),
                     figure("eager", "direct_step", 7.0), figure("compiled", "direct_step", 5.0))
        self.assertIn("| 2.00 | 7.00 | 5.00 | 2.50 | – |", self.row("direct step"))

    def test_share_is_of_the_ceiling_that_binds(self):
        self.compare(ENVIRONMENT,
                     figure("dofla", "teacher_forward", 1.0, operations=1e11, bytes=4e8),
                     figure("dofla", "linear_decode", 1.0, operations=1e9, bytes=1e9))
        self.assertIn("20 % (product)", self.row("teacher forward"))
        self.assertIn("25 % (memory)", self.row("linear decode, batch 1"))

    def test_missing_is_said(self):
        reason = {"engine": "compiled", "name": "direct_step", "missing": "out of memory"}
        self.compare(ENVIRONMENT, figure("eager", "direct_step", 7.0), reason)
        self.assertIn("| missing | 7.00 | missing | – | – |", self.row("direct step, ms"))
        self.assertIn("direct_step (compiled): out of memory", self.page.read_text())

    def test_exact_keys_are_compared_with_features_alone(self):
        self.compare(ENVIRONMENT, figure("dofla", "untied_prefill", 0.4),
                     figure("dofla", "hybrid_prefill", 0.6), figure("dofla", "by_head_prefill", 1.0))
        self.assertIn("| 0.400 | 0.600 | 1.00 | 1.50 | 2.50 |", self.row("prefill, ms/sample | 0.4"))
        self.compare(ENVIRONMENT, figure("dofla", "untied_prefill", 0.4))
        self.assertNotIn("Students with untied features", self.page.read_text())

    def test_steps_of_many_sequences_have_their_tokens_a_second(self):
        self.compare(ENVIRONMENT, figure("dofla", "linear_decode_64", 0.5, bytes=1e9),
                     figure("dofla", "softmax_decode_64", 2.0), figure("dofla", "linear_decode_1024", 4.0))
        self.assertIn("| 64 | 0.500 | 128,000 | 50 % (memory) | 2.00 | 32,000 |", self.row("| 64 | 0.5"))
        self.assertIn("| 1,024 | 4.00 | 256,000 | – | – | – |", self.row("| 1,024 |"))

    def test_last_figure_counts(self):
        self.compare(ENVIRONMENT, figure("dofla", "direct_step", 3.0),
                     figure("dofla", "direct_step", 2.0))
        self.assertIn("| 2.00 |", self.row("direct step"))

    def test_notes_stay(self):
        self.page.write_text("# before\n\n## Notes\nby hand\n")
        self.compare(ENVIRONMENT)
        self.assertTrue(self.page.read_text().startswith("# a GPU\n"))
        self.assertTrue(self.page.read_text().endswith("\n\n## Notes\nby hand\n"))

    def test_other_files_are_refused(self):
        run = self.compare({"engine": "dofla"})
        self.assertEqual(run.returncode, 1)
        self.assertIn("lines.jsonl:1: not a line of gpu_bench", run.stderr)
        self.assertIn("no figures of gpu_bench", self.compare().stderr)
        self.assertFalse(self.page.exists())


if __name__ == "__main__":
    unittest.main()
