#!/usr/bin/env python3
"""Everything that is shown to users runs: docstrings, docs/python.md, examples/notebook.py."""

import contextlib
import doctest
import inspect
import io
import os
import re
import unittest
import warnings

from support import FOLDER, ROOT, SCRATCH, TEXT, dofla, new_path


class Examples(unittest.TestCase):
    def test_docstrings(self):
        scratch = new_path("doctests")
        scratch.mkdir()
        names = {"dofla": dofla, "folder": FOLDER, "text": TEXT, "scratch": scratch, "model": dofla.Model(FOLDER)}
        finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
        # In an order in which one takes up what another has left.
        objects = [dofla, dofla.Result, dofla.Model, dofla.Model.generate, dofla.inspect, dofla.dof, dofla.plan,
                   dofla.sensitivity, dofla.distill, dofla.teach, dofla.finetune, dofla.evaluate, dofla.quantize,
                   dofla.estimate, dofla.compare]
        functions = [value for value in vars(dofla).values()
                     if inspect.isfunction(value) and value.__module__.startswith("dofla")]
        self.assertLessEqual(set(functions), set(objects))
        for value in objects:
            tests = finder.find(value, getattr(value, "__name__", None), module=False, globs=dict(names))
            self.assertEqual([bool(test.examples) for test in tests], [True], value)
            output = io.StringIO()
            runner.run(tests[0], out=output.write)
            self.assertEqual(runner.failures, 0, output.getvalue())

    def run_code(self, code, name):
        """In a folder of its own, where what the texts call path/to/gpt2 and wiki.txt is small."""
        folder = new_path("shown")
        (folder / "path/to").mkdir(parents=True)
        (folder / "path/to/gpt2").symlink_to(FOLDER)
        (folder / "wiki.txt").symlink_to(TEXT)
        printed = io.StringIO()
        before = os.getcwd()
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(printed), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compile(code, name, "exec"), {"__name__": "__main__"})
        finally:
            os.chdir(before)
        return printed.getvalue()

    def test_document(self):
        text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
        blocks = re.findall(r"```python\n(.*?)```", text, re.S)
        self.assertGreaterEqual(len(blocks), 4)
        self.run_code("\n".join(blocks), "docs/python.md")

    def test_readme(self):
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        code, = re.findall(r"```python\n(.*?)```", text, re.S)
        small = code.replace('data="wiki.jsonl.zst", memory="5MB"',
                             'data="wiki.txt", memory="60kB", length=32, held_out=2, steps=1')
        self.assertNotEqual(small, code)
        self.run_code(small, "README.md")

    def test_notebook(self):
        code = (ROOT / "examples/notebook.py").read_text(encoding="utf-8")
        small = 'TEACHER, TEXT, STEPS, LENGTH = "path/to/gpt2", "wiki.txt", 2, 32\n'
        changed, count = re.subn(r"(?m)^TEACHER, TEXT, STEPS, LENGTH = .*\n", small, code)
        self.assertEqual(count, 1)
        self.assertGreater(code.count("# %%"), 4)
        self.assertRegex(self.run_code(changed, "examples/notebook.py"), r"student [1-9]\.\d+")


if __name__ == "__main__":
    unittest.main()
