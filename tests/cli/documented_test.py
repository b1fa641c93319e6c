#!/usr/bin/env python3
"""Every command that the documentation shows is one of the program's, with options that it has.

usage: documented_test.py DOFLA"""

import functools
import re
import unittest

import dofla

CODE = re.compile(r"^```\w*\n(.*?)^```|((?:^(?: {4}|\t)[^\n]*\n)+)|`([^`\n]+)`", re.M | re.S)
COMMAND = re.compile(r"(?:^|[\s;&|(])dofla ([a-z]+)\b([^;|&)]*)")


@functools.cache
def options_of(command):
    """Names of a command's options, and those of the program itself."""
    text = "".join(dofla.run(*words, "--help")[0] for words in ([], [command]))
    return {name for names in re.findall(r"^  (-[^ ]+)", text, re.M) for name in names.split(",")}


@functools.cache
def commands():
    return re.findall(r"^  ([a-z]+) ", re.search(r"\nCommands:\n(.*?)\n\n", dofla.run("--help")[0], re.S)[1], re.M)


def shown(text):
    """(command, options) of every line of code or quotation that calls dofla."""
    for blocks in CODE.findall(text):
        for line in "".join(blocks).replace("\\\n", " ").splitlines():
            for command, rest in COMMAND.findall(line.split(" #")[0]):
                yield command, re.findall(r"(?:^|\s)\[?(--[a-z][a-z-]*)", rest)


class Documented(unittest.TestCase):
    def test_commands_and_options_exist(self):
        count = 0
        for document in sorted(dofla.ROOT.glob("*.md")) + sorted(dofla.ROOT.glob("*/**/*.md")):
            if "build" in document.parts or document.name == "CHANGELOG.md":
                continue
            for command, options in shown(document.read_text(encoding="utf-8")):
                with self.subTest(document.name, command=command):
                    self.assertIn(command, commands())
                    self.assertLessEqual(set(options), options_of(command))
                    count += 1
        self.assertGreater(count, 80)


if __name__ == "__main__":
    unittest.main()
