#!/usr/bin/env python3
"""Every option that a help text lists is passed here, and changes what it is there to change.

options_test.py BINARY [COMMAND]. Who adds an option to a command adds its check in the folder
options; an option that a short run cannot show is `elsewhere`, with the test that passes it and the
reason."""

import re
import sys
import unittest

import dofla
import options.comparing
import options.finetuning
import options.planning
import options.reading
import options.serving
import options.training
from options.checks import CHECKS
from options.common import COMMANDS


def listed_options(command):
    """The options of a help text: names that stand two spaces from the edge."""
    names = []
    for line in dofla.run(*command.split(), "--help")[0].splitlines():
        if found := re.match(r"  (-\S+)", line):
            names += [name for name in found[1].split(",") if name.startswith("--")]
    return names


class Options(unittest.TestCase):
    pass


def add_tests(command):
    listed = listed_options(command)
    title = command or "dofla"

    def complete(self):
        known = {name for of, name in CHECKS if of == command}
        self.assertEqual(set(listed) - known, set(), "have no check in tests/cli/options")
        self.assertEqual(known - set(listed), set(), "are checked, but no help text lists them")

    setattr(Options, f"test_{title}: every option has a check", complete)
    for name in listed:
        if (command, name) in CHECKS:
            setattr(Options, f"test_{title} {name}",
                    lambda self, verify=CHECKS[command, name]: verify())


if __name__ == "__main__":
    wanted = [name for name in COMMANDS if name in sys.argv[1:] or (not name and "dofla" in sys.argv)]
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in COMMANDS and word != "dofla"]
    for each in wanted or COMMANDS:
        add_tests(each)
    unittest.main()
