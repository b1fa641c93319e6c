"""What a check of an option is made of."""

import re

import dofla

CHECKS = {}  # (command, option) -> a function that raises AssertionError


def option(command, *names):
    def register(function):
        for name in names:
            CHECKS[command, name] = function
        return function
    return register


def elsewhere(command, name, test, reason):
    """The option is passed by the test of that name, for this reason."""
    def find():
        sources = "".join(p.read_text() for p in (dofla.ROOT / "tests").rglob("*_test.*"))
        check(reason and re.search(rf"\b{test}\b", sources), f"there is no test {test}")
    CHECKS[command, name] = find


def check(condition, what="it changes nothing, or something else than it should"):
    if not condition:
        raise AssertionError(what)


def equal(found, expected):
    check(found == expected, f"expected {expected}, found {found}")


def apart(a, b, factor=1.0):
    """The largest |a - factor b| over all elements."""
    return max(abs(x - factor * y) for x, y in zip(a, b, strict=True))
