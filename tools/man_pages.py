#!/usr/bin/env python3
"""Writes a man page for dofla and one for each of its commands from what --help says.

usage: man_pages.py DOFLA FOLDER
"""

import re
import subprocess
import sys
from pathlib import Path

ENTRY = re.compile(r"  (\S.*?)(?:\s{2,}(\S.*))?$")  # an option or command, and the start of its text


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def escape(text):
    """Text as it is: roff takes no backslash, hyphen or dot at the start of a line for its own."""
    text = text.replace("\\", "\\(rs").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.M)


def entries(lines):
    """A section of the help: every entry with its text, which may go on over indented lines."""
    for line in lines:
        if line.startswith(" " * 10):
            yield escape(line.strip())
        elif entry := ENTRY.match(line):
            yield f".TP\n.B {escape(entry[1])}"
            if entry[2]:
                yield escape(entry[2])


def page(program, command, version):
    """The roff of one page. The help is a description, a usage, sections of entries, then prose."""
    blocks = re.split(r"\n{2,}", output(program, *command, "--help").strip())
    description, usage = blocks[0].split("\nUsage: ")
    name = "-".join(["dofla", *command])
    lines = [f'.TH {name.upper()} 1 "" "dofla {version}" "User Commands"',
             ".SH NAME", f"{escape(name)} \\- {escape(' '.join(description.split()))}",
             ".SH SYNOPSIS", f".B {escape(usage)}"]
    described = False
    for block in blocks[1:]:
        title, *rest = block.split("\n")
        if title in ("Positionals:", "Commands:") or rest[:1] and rest[0].startswith("  -"):
            lines += [f".SH {title[:-1].upper()}", *entries(rest)]
        elif title.endswith(":"):
            lines += [f".SH {title[:-1].upper()}", ".nf", escape("\n".join(rest)), ".fi"]
        else:
            lines += [".PP" if described else ".SH DESCRIPTION", escape(block)]
            described = True
    return name, "\n".join(lines) + "\n"


def main():
    program, folder = sys.argv[1], Path(sys.argv[2])
    version = output(program, "--version").split()[1]
    commands = re.search(r"\nCommands:\n(.*?)\n\n", output(program, "--help"), re.S)[1]
    folder.mkdir(parents=True, exist_ok=True)
    for command in [[], *([line.split()[0]] for line in commands.split("\n"))]:
        name, text = page(program, command, version)
        (folder / f"{name}.1").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
