"""What the tests of reported numbers share: short runs, and how numbers are found in tables."""

import json
import re
import unittest

from dofla import MODEL, answer, new_path, text_file


def parts(text, label, pattern):
    """The groups of a pattern in the line that begins with a label."""
    found = re.search(rf"(?m)^\s*{re.escape(label)}\s+{pattern}", text)
    assert found, f"no line {label!r} like {pattern!r} in\n{text}"
    return found.groups()


def ungrouped(word):
    return int(word.replace(",", ""))


def with_bytes_unit(count):
    value, unit = float(count), 0
    while value >= 1000:
        value, unit = value / 1000, unit + 1
    return f"{count} bytes" if unit == 0 else f"{value:.1f} {['', 'kB', 'MB', 'GB'][unit]}"


class Reported(unittest.TestCase):
    def shows(self, word, value, digits):
        """A word is a number, rounded to so many decimals."""
        self.assertEqual(word, f"{value:.{digits}f}")

    @classmethod
    def setUpClass(cls):
        cls.text = ["--data", text_file(), "--length", 32]
        cls.config = json.loads((MODEL / "config.json").read_text())
        cls.windows = answer("evaluate", MODEL, *cls.text)["sequences"]
        cls.whole = [w for w in cls.windows if w["tokens"] == 31]  # the last one is shorter
        cls.student = new_path("student")
        cls.distill = ["distill", MODEL, *cls.text, "--cost", 12, "--steps", 3, "--batch", 2,
                       "--held-out", 3]
        cls.distilled = answer(*cls.distill, "--samples", 48, "--out", cls.student)
