#!/usr/bin/env python3
"""The check of lengths names the sources that are too long, and no others."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECK = Path(__file__).resolve().parents[2] / "tools" / "check_length.py"


class CheckLength(unittest.TestCase):
    def check(self, name, lines):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.parent.mkdir(parents=True)
            path.write_text("x\n" * lines, encoding="utf-8")
            run = subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True)
            return run.returncode, run.stderr

    def test_limit(self):
        for name in ("dofla/ops/a.cc", "dofla/ops/cuda/a.cuh", "cli/a.h", "tests/a/b.py", "tools/a.sh"):
            self.assertEqual(self.check(name, 300), (0, ""))
            status, errors = self.check(name, 301)
            self.assertEqual(status, 1)
            self.assertTrue(errors.startswith(f"{name}: 301 lines"), errors)

    def test_data_may_be_long(self):
        self.assertEqual(self.check("tests/fixtures/a.json", 5000), (0, ""))


if __name__ == "__main__":
    unittest.main()
