#!/usr/bin/env python3
"""The list of defects fits the sources, and what tries them tells caught from survived."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import mutants  # noqa: E402

FOLDERS = {"ops", "dof", "plan", "linear", "model", "train", "evaluate", "generate", "report",
           "reproduce", "checkpoint", "data", "cli", "features", "distill", "fidelity", "sensitivity",
           "distributed", "pipeline", "serve"}


class TheList(unittest.TestCase):
    def test_every_text_stands_in_its_file_exactly_once(self):
        try:
            mutants.check_list(mutants.read_list())
        except mutants.Rotten as rotten:
            self.fail(f"tools/mutants.txt no longer fits the sources; mend these entries:\n{rotten}")

    def test_it_has_sixty_over_all_folders_and_few_excuses(self):
        found = mutants.read_list()
        self.assertGreaterEqual(len(found), 60)
        reached = {Path(m.file).parts[0 if m.file.startswith("cli") else 1] for m in found}
        self.assertEqual(FOLDERS - reached, set())
        excused = [m for m in found if m.survives]
        self.assertLessEqual(len(excused), 0.05 * len(found))

    def test_every_one_has_tests_of_its_own(self):
        for mutant in mutants.read_list():
            folder = mutants.folder_of(mutant.file)
            self.assertTrue(mutants.suites(ROOT, folder), f"{mutant.file}: no tests in {folder}")


class FakeCopy(mutants.Copy):
    """A tree of one file, "built" by nothing; its test fails unless the file says 4."""

    def __init__(self, folder, root):
        super().__init__(folder, root)
        self.seen = None

    def make(self):
        self.seen = (self.folder / "dofla/dof/four.cc").read_text()
        return "syntax" not in self.seen, "error: syntax"

    def first_to_fail(self, file):
        return None if "4" in self.seen else "Four.IsFour"


@unittest.skipUnless(shutil.which("git"), "git, which lists the files of a tree, is not there")
class Trying(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root, copy = Path(scratch.name, "tree"), Path(scratch.name, "copy")
        source = self.root / "dofla/dof/four.cc"
        source.parent.mkdir(parents=True)
        source.write_text("int four() { return 4; }  // twice: int int\n")
        copy.mkdir()
        subprocess.run(["git", "init", "-q", self.root], check=True)
        self.source, self.copy = source, FakeCopy(copy, self.root)

    def mutant(self, old, new, survives=""):
        return mutants.Mutant("dofla/dof/four.cc", old, new, "what it breaks", survives)

    def test_a_defect_is_caught_and_leaves_neither_tree_changed(self):
        before = self.source.read_text()
        self.assertEqual(mutants.attempt(self.mutant("return 4", "return 5"), self.copy),
                         "Four.IsFour")
        self.assertIn("return 5", self.copy.seen)
        self.assertEqual(self.source.read_text(), before)
        self.assertEqual((self.copy.folder / "dofla/dof/four.cc").read_text(), before)

    def test_one_that_no_test_sees_survives(self):
        self.assertIsNone(mutants.attempt(self.mutant("four()", "vier()"), self.copy))

    def test_what_a_killed_run_left_in_the_copy_is_gone(self):
        self.copy.refresh()
        (self.copy.folder / "dofla/dof/four.cc").write_text("int four() { return 6; }\n")
        (self.copy.folder / "dofla/dof/five.cc").write_text("")
        self.assertIsNone(mutants.attempt(self.mutant("four()", "vier()"), self.copy))
        self.assertFalse((self.copy.folder / "dofla/dof/five.cc").exists())

    def test_a_text_that_is_not_there_once_is_refused(self):
        for old in ("return 7", "int"):
            with self.assertRaises(mutants.Rotten):
                mutants.attempt(self.mutant(old, "x"), self.copy)
        with self.assertRaises(mutants.Rotten):
            mutants.check_list([self.mutant("return 7", "x")], self.root)
        with self.assertRaises(mutants.Rotten):
            mutants.attempt(self.mutant("return 4", "syntax"), self.copy)

    def test_survivors_need_an_explanation_and_must_be_few(self):
        caught = [(self.mutant("a", "b"), "Some.Test")]
        survivor, explained = self.mutant("a", "c"), self.mutant("a", "d", "equivalent")
        self.assertEqual(mutants.judge(19 * caught + [(explained, None)]), 0)
        self.assertEqual(mutants.judge(19 * caught + [(survivor, None)]), 1)
        self.assertEqual(mutants.judge(18 * caught + 2 * [(explained, None)]), 1)

    def test_malformed_entries_are_refused(self):
        path = Path(self.root, "list.txt")
        for text in ("a.cc\n- x\n+ y\n", "a.cc\n- x\n+ x\n# same\n", "a.cc\nx\n",
                     "a.cc\n- x\n- y\n+ z\n# two\n"):
            path.write_text(text)
            with self.assertRaises(mutants.Rotten):
                mutants.read_list(path)
        path.write_text("% a remark\na.cc\n- x\n+ y\n# why\n= because\n")
        self.assertEqual(mutants.read_list(path), [mutants.Mutant("a.cc", "x", "y", "why",
                                                                  "because")])


if __name__ == "__main__":
    unittest.main()
