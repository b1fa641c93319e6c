#!/usr/bin/env python3
"""Tries the tests: puts one small defect at a time into a copy of the sources and asks whether a
test fails.

tools/mutants.py [--only PATTERN] [--jobs N] [--list] [--folder DIR]

The defects stand in tools/mutants.txt, matched by their text. Every one is put into a copy of the
tree under build/mutants (or --folder), built there, and tried first by the tests of its file and
folder, then by all until one fails. The tree itself is never touched, and the copy is made equal
to it before every defect: a run that was killed leaves nothing behind.

Exits with 1 if fewer than 95 % are caught, or if one survives that carries no explanation."""

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools/mutants.txt"
LEAST_CAUGHT = 0.95
LONGEST = 900  # seconds that a stage of tests may take; a defect may well loop for ever


class Rotten(Exception):
    """An entry of the list that no longer fits the sources."""


@dataclass
class Mutant:
    file: str
    old: str
    new: str
    breaks: str
    survives: str  # why no test can tell; empty where one must

    def applied_to(self, text):
        count = text.count(self.old)
        if count != 1:
            raise Rotten(f"{self.file}: expected once, found {count} times: {self.old}")
        return text.replace(self.old, self.new)


def read_list(path=LIST):
    """Blocks of lines: the file, "- " the text there, "+ " the text instead, "# " what it breaks,
    and perhaps "= " why it survives. Lines that begin with "%" are remarks."""
    mutants = []
    for block in re.split(r"\n\s*\n", path.read_text()):
        lines = [line for line in block.splitlines() if line.strip() and not line.startswith("%")]
        if not lines:
            continue
        fields = {"- ": "", "+ ": "", "# ": "", "= ": ""}
        for line in lines[1:]:
            if line[:2] not in fields or fields[line[:2]]:
                raise Rotten(f"{path.name}: {lines[0]}: cannot read the line: {line}")
            fields[line[:2]] = line[2:]
        mutant = Mutant(lines[0], *fields.values())
        if not (mutant.old and mutant.breaks and mutant.old != mutant.new):
            raise Rotten(f"{path.name}: {lines[0]}: expected lines with '- ', '+ ' and '# '")
        mutants.append(mutant)
    return mutants


def check_list(mutants, root=ROOT):
    """Every text is there exactly once, and no entry stands there twice."""
    wrong = []
    for mutant in mutants:
        try:
            mutant.applied_to((root / mutant.file).read_text())
        except (Rotten, OSError) as error:
            wrong.append(str(error))
    seen = [(m.file, m.old, m.new) for m in mutants]
    wrong += [f"{m[0]}: twice in the list: {m[1]}" for m in set(seen) if seen.count(m) > 1]
    if wrong:
        raise Rotten("\n".join(wrong))


def suites(root, folder, begin=""):
    """The names of the GoogleTest suites whose sources are in a folder of tests/, or those of them
    whose names begin in this way."""
    names = set()
    place = root / "tests" / folder
    if not place.exists():  # a folder whose tests are one file
        place = root / "tests" / f"{folder}_test.cc"
    for path in [place] if place.is_file() else sorted(place.rglob(f"{begin}*_test.cc")):
        if "cuda" not in path.parts:
            names |= set(re.findall(r"^TEST(?:_[FP])?\((\w+),", path.read_text(), re.M))
    return sorted(names)


def folder_of(file):
    """Where the tests of a source are: a folder of tests/, or a file there."""
    parts = Path(file).parts
    if parts[0] == "cli":
        return "cli"
    return parts[1] if len(parts) > 2 else Path(parts[1]).stem + "_test.cc"


class Copy:
    """A copy of the tree with a build of its own."""

    def __init__(self, folder, root=ROOT):
        self.root, self.folder = root, folder
        self.build = folder / "build/release"

    def command(self, *arguments, limit=None):
        """(whether it went well, what it printed)"""
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run([str(a) for a in arguments], cwd=self.folder, timeout=limit,
                                  text=True, errors="replace", stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, env=environment)
        except subprocess.TimeoutExpired:
            return False, f"ran longer than {limit} s"
        return done.returncode == 0, done.stdout

    def refresh(self):
        """Makes the copy equal to the tree, file by file, so that little is built again."""
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"], cwd=self.root, capture_output=True,
                                check=True, text=True).stdout.split("\0")
        wanted = {name for name in listed if name and (self.root / name).is_file()}
        for name in wanted:
            source, target = self.root / name, self.folder / name
            if not target.is_file() or target.read_bytes() != source.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)  # with a new time: what was built of it is old
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder)
            if name.parts[0] not in ("build", ".git") and path.is_file() and \
                    str(name) not in wanted:
                path.unlink()

    def make(self):
        if not (self.build / "build.ninja").exists():
            went_well, out = self.command("cmake", "-S", ".", "-B", self.build, "-G", "Ninja",
                                          "-DCMAKE_BUILD_TYPE=Release", "-DDOFLA_BENCH=OFF")
            if not went_well:
                return went_well, out
        return self.command("cmake", "--build", self.build, "--target", "dofla_cli", "dofla_tests",
                            "dofla_rank_tests")

    def gtest(self, names=None):
        """The first test that fails; None if all are well."""
        wanted = ["*"] if names is None else [f"{n}.*" for n in names] + [f"*/{n}.*" for n in names]
        program = self.build / "tests/dofla_tests"
        went_well, out = self.command(program, "--gtest_fail_fast", "--gtest_brief=1",
                                      "--gtest_filter=" + ":".join(wanted), limit=LONGEST)
        return None if went_well else first_failure(r"\[  FAILED  \] ([\w./]+)", out)

    def ctest(self, pattern):
        went_well, out = self.command("ctest", "--test-dir", self.build, "--stop-on-failure", "-R",
                                      pattern, "--output-on-failure", limit=LONGEST)
        return None if went_well else first_failure(r"FAIL: test_?(.*?) \(", out)

    def first_to_fail(self, file):
        """The tests of the file, those of its folder, then all others."""
        own = suites(self.folder, folder_of(file), Path(file).stem)
        beside = suites(self.folder, folder_of(file))
        stages = [lambda names=names: self.gtest(names) for names in (own, beside) if names]
        stages += [lambda: self.ctest(r"^(Options|Reported|Distributed)\."), self.gtest]  # the quicker first
        return next((name for stage in stages if (name := stage())), None)


def first_failure(pattern, out):
    found = re.search(pattern, out)
    return found[1] if found else (out.strip().splitlines() or ["a crash"])[-1][:100]


def attempt(mutant, copy):
    """The test that catches a mutant, or None."""
    copy.refresh()
    path = copy.folder / mutant.file
    path.write_text(mutant.applied_to(path.read_text()))
    try:
        went_well, out = copy.make()
        if not went_well:
            errors = [line for line in out.splitlines() if "error" in line.lower()]
            raise Rotten(f"{mutant.file}: does not compile: {mutant.new}\n" + "\n".join(errors[:3]))
        return copy.first_to_fail(mutant.file)
    finally:
        copy.refresh()


def prepare(copy):
    """Builds the copy as it is. Tests that fail without a defect say nothing about one."""
    copy.folder.mkdir(parents=True, exist_ok=True)
    copy.refresh()
    went_well, out = copy.make()
    if not went_well:
        sys.exit(f"tools/mutants.py: the tree does not build:\n{out[-2000:]}")
    if failed := copy.gtest() or copy.ctest(r"^(Options|Reported|Distributed)\."):
        sys.exit(f"tools/mutants.py: without any defect a test fails: {failed}")


def try_all(mutants, copies):
    """[(mutant, the test that caught it or None)], told as they come."""
    free = queue.Queue()
    for copy in copies:
        free.put(copy)

    def one(mutant):
        copy = free.get()
        try:
            caught_by = attempt(mutant, copy)
        finally:
            free.put(copy)
        verdict = f"caught by {caught_by}" if caught_by else "SURVIVED"
        print(f"{mutant.file}: {mutant.breaks}: {verdict}", flush=True)
        return mutant, caught_by

    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(one, mutants))


def judge(results):
    """Prints the summary; the exit code."""
    survivors = [mutant for mutant, caught_by in results if not caught_by]
    caught = len(results) - len(survivors)
    print(f"\n{caught} of {len(results)} caught ({100 * caught / len(results):.0f} %)")
    for mutant in survivors:
        print(f"survived: {mutant.file}: {mutant.breaks}: "
              f"{mutant.survives or 'NOT EXPLAINED: write a test'}")
    for mutant, caught_by in results:
        if caught_by and mutant.survives:
            print(f"caught, though explained: {mutant.file}: {mutant.breaks}: {caught_by}")
    explained = all(mutant.survives for mutant in survivors)
    return 0 if explained and caught >= LEAST_CAUGHT * len(results) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", default="",
                        help="those whose file or description this regular expression finds")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="copies side by side")
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--folder", metavar="DIR", type=Path, default=ROOT / "build/mutants",
                        help="where the copies go")
    options = parser.parse_args()
    mutants = read_list()
    check_list(mutants)
    mutants = [m for m in mutants if re.search(options.only, f"{m.file}: {m.breaks}")]
    if not mutants:
        sys.exit(f"tools/mutants.py: nothing in the list matches {options.only}")
    if options.list:
        print("\n".join(f"{m.file}: {m.breaks}" for m in mutants))
        return 0
    copies = [Copy(options.folder / str(number + 1)) for number in range(options.jobs)]
    for copy in copies:
        prepare(copy)
    return judge(try_all(mutants, copies))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Rotten as rotten:
        sys.exit(f"tools/mutants.py: {rotten}")
