#!/usr/bin/env python3
"""Fails on a source of more than 300 lines: there is a second thing in it.

usage: check_length.py [ROOT]        the folder to look through, by default the repository
"""

import sys
from pathlib import Path

LIMIT = 300
FOLDERS = ("dofla", "cli", "python", "examples", "tests", "bench", "tools")
SOURCES = {".h", ".cc", ".in", ".cu", ".cuh", ".py", ".sh", ".js", ".css", ".cmake"}


def long_sources(root):
    """One line for every source under root that is too long, in the order of the files."""
    files = [path for folder in FOLDERS for path in (root / folder).rglob("*")]
    for path in sorted(file for file in files if file.suffix in SOURCES):
        lines = path.read_bytes().count(b"\n")
        if lines > LIMIT:
            yield f"{path.relative_to(root).as_posix()}: {lines} lines, at most {LIMIT} are allowed: split it"


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    errors = list(long_sources(root))
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
