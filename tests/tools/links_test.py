#!/usr/bin/env python3
"""Every link in the documentation leads somewhere: to a file of the repository, and to a heading where it names one."""

import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)


def documents():
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.split() if listed.returncode == 0 else [
        path.relative_to(ROOT) for path in ROOT.rglob("*.md") if "build" not in path.parts]
    return [ROOT / name for name in names]


def anchors(text):
    """The anchors of its headings, as GitHub makes them."""
    found = {}
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.M):
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return {name if n == 0 else f"{name}-{n}" for name, last in found.items() for n in range(last + 1)}


class Links(unittest.TestCase):
    def test_lead_to_files_and_headings(self):
        self.assertGreater(len(documents()), 10)
        checked = 0
        for document in documents():
            for link in LINK.findall(FENCE.sub("", document.read_text(encoding="utf-8"))):
                if "://" in link or link.startswith("mailto:"):
                    continue
                with self.subTest(f"{document.relative_to(ROOT)}: {link}"):
                    name, _, anchor = link.partition("#")
                    target = document.parent / name if name else document
                    self.assertTrue(target.exists(), "no such file")
                    if anchor:
                        self.assertIn(anchor, anchors(target.read_text(encoding="utf-8")))
                    checked += 1
        self.assertGreater(checked, 100)

    def test_anchors_are_those_of_github(self):
        self.assertEqual(anchors("# A `b` (c)\n## The l2 loss: [x](y.md)\n```\n# no\n```\n## A b c\n"),
                         {"a-b-c", "the-l2-loss-x", "a-b-c-1"})


if __name__ == "__main__":
    unittest.main()
