#!/usr/bin/env python3
"""Writes _functions.pyi: the types of the functions that dofla makes from its table of options.

usage: stubs.py FOLDER       that of the built package dofla
"""

import inspect
import sys
from pathlib import Path

HEADING = '''"""Made by python/stubs.py from the options of the commands."""

from __future__ import annotations

from os import PathLike
from typing import Callable, Iterable, Literal, Optional, Union

from numpy.typing import ArrayLike

from . import Progress
from ._model import Model
from ._results import (Comparison, DegreesOfFreedom, Distillation, Evaluation, Finetuning, Inspection, Plan, Result,
                       Sensitivity)

_Path = Union[str, PathLike[str]]
'''
# What a help text has in the place of a value that is no number.
TYPES = {"": "Union[_Path, Model]", "MODEL": "Union[_Path, Model]", "...": "Union[_Path, Model]", "TEXT": "str",
         "NAME": "str", "NAME...": "str", "F": "_Path", "F...": "_Path", "DIR": "_Path", "FILE": "_Path",
         "BYTES": "Union[int, str]", "X": "Union[float, str]"}
SPECIAL = {"plan.file": "Union[_Path, Result]", "distill.plan": "Union[_Path, Result]",
           "ids": "Union[_Path, ArrayLike, Iterable[ArrayLike]]"}


def type_of(command, name, option, choices):
    if option["flag"]:
        return "bool"
    if choices:
        return f"Literal[{', '.join(map(repr, choices))}]"
    one = SPECIAL.get(f"{command}.{name}") or SPECIAL.get(name) or option["number"] or TYPES[option["type"]]
    return f"Union[{one}, Iterable[{one}]]" if option["many"] else one


def stub_of(dofla, commands, name):
    function, options = getattr(dofla, name), commands.options_of(name)
    lines = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind == parameter.KEYWORD_ONLY and "*" not in lines:
            lines.append("*")
        option = options.get(parameter.name)
        text = type_of(name, parameter.name, option, commands.choices_of(option)) if option else \
            "Callable[[Progress], object]"
        if parameter.default is None:
            text = f"Optional[{text}]"
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"{parameter.name}: {text}{default}")
    return f"\n\ndef {name}(\n    " + ",\n    ".join(lines) + f",\n) -> {function.__annotations__['return']}: ...\n"


def main():
    folder = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(folder.parent))
    import dofla
    from dofla import _commands as commands
    names = [name for name in commands.TABLE if hasattr(dofla, name)]
    (folder / "_functions.pyi").write_text(HEADING + "".join(stub_of(dofla, commands, name) for name in names))


if __name__ == "__main__":
    main()
