"""Functions that are the program's commands: their keyword arguments are its options, from the same table."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import tempfile
import textwrap
import warnings
from pathlib import Path
from typing import Any, Callable, Iterable

import numpy as np

from . import _dofla
from ._results import Result, python_name

TABLE: dict[str, tuple[str, list[dict[str, Any]]]] = _dofla.commands()


def options_of(command: str) -> dict[str, dict[str, Any]]:
    return {python_name(option["name"].lower()): option for option in TABLE[command][1]}


def choices_of(option: dict[str, Any]) -> list[str]:
    found = re.search(r"\{(.*)\}", option["type"])
    return found[1].split(",") if found else []


def default_of(option: dict[str, Any]) -> Any:
    """As the command line has it; None where what is left out depends on the rest."""
    if option["required"]:
        return inspect.Parameter.empty
    if option["flag"]:
        return False
    text = option["default"]
    if not text or option["many"]:
        return None
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def signature_of(command: str) -> inspect.Signature:
    kinds = inspect.Parameter
    parameters = [kinds(name, kinds.POSITIONAL_OR_KEYWORD if option["positional"] else kinds.KEYWORD_ONLY,
                        default=default_of(option)) for name, option in options_of(command).items()]
    parameters.append(kinds("progress", kinds.KEYWORD_ONLY, default=None))
    return inspect.Signature(sorted(parameters, key=lambda parameter: parameter.kind))


def describe(function: Callable[..., Any], described: Iterable[str] = ()) -> str:
    """The docstring of a command's function: what the command does, what the function says itself, and its arguments
    without those that it has described."""
    command = function.__name__
    parameters = inspect.signature(function).parameters
    lines = [TABLE[command][0] + ".", "", inspect.cleandoc(function.__doc__ or ""), "", "Arguments:"]
    for name, option in options_of(command).items():
        if name not in parameters or name in described:
            continue
        text = re.sub(r"\s+", " ", option["help"])
        if choices_of(option):
            text += f" [{'|'.join(choices_of(option))}]"
        if option["default"]:
            text += f" (default: {option['default']})"
        lines.append(textwrap.fill(text, 100, initial_indent=f"    {name}: ", subsequent_indent=" " * 8))
    if "progress" in parameters:
        lines.append("    progress: called with a dofla.Progress now and then; what it raises stops the work")
    return "\n".join(lines)


def command(result: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function that has only a docstring the command of its name."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        signature = signature_of(name)
        options = options_of(name)

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            try:
                given = dict(signature.bind(*arguments, **keywords).arguments)
            except TypeError as error:
                raise TypeError(f"{name}() {error}") from None
            progress = given.pop("progress", None)
            for model in list(given.values()):  # a Model is its folder, and computes where it does
                if hasattr(model, "__fspath__") and hasattr(model, "device") and "device" in options:
                    given.setdefault("device", model.device)
            if progress is not None and not callable(progress):
                raise TypeError(f"{name}(): progress: expected a function, found {type(progress).__name__}")
            with tempfile.TemporaryDirectory(prefix="dofla-") as scratch:
                words = [name, *words_of(options, given, Path(scratch)), "--json"]
                return result(_run(words, progress))

        del call.__wrapped__  # type: ignore[attr-defined]
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = describe(call)
        call.__annotations__ = {"return": result.__name__}
        return call

    return decorate


def words_of(options: dict[str, dict[str, Any]], given: dict[str, Any], scratch: Path = Path()) -> Iterable[str]:
    """The words of a command line that say what these keyword arguments do, positional ones first. What is not a
    file yet is saved in the folder `scratch`."""
    for name, value in sorted(given.items(), key=lambda item: not options[item[0]]["positional"]):
        option = options[name]
        if value is None:
            continue
        if option["flag"]:
            if not isinstance(value, bool):
                raise TypeError(f"{name}: expected True or False, found {type(value).__name__}")
            yield from [f"--{option['name']}"] if value else []
            continue
        if name == "ids" and not isinstance(value, (str, os.PathLike)):
            value = _saved(_sequences(value), scratch / "ids.json")
        several = option["many"] and not isinstance(value, (str, os.PathLike)) and isinstance(value, Iterable)
        values: Iterable[Any] = value if several else [value]
        words = [_word(name, one, scratch) for one in values]
        if not words:
            raise ValueError(f"{name}: expected at least one, found none")
        if option["delimiter"]:
            words = [option["delimiter"].join(words)]
        for word in words:
            if option["positional"]:
                yield f"./{word}" if word.startswith("-") else word
            elif word.startswith("-"):
                yield f"--{option['name']}={word}"
            else:
                yield from (f"--{option['name']}", word)


def _word(name: str, value: Any, scratch: Path) -> str:
    if isinstance(value, Result):  # where the command line has a file that another command saved
        return _saved(value.to_dict(), scratch / f"{name}.json")
    if isinstance(value, (str, os.PathLike)):
        return path_of(name, value)
    if isinstance(value, bool) or not hasattr(value, "__float__") or getattr(value, "ndim", 0):
        raise TypeError(f"{name}: expected a number, a name or a path, found {type(value).__name__}")
    return str(value)


def path_of(name: str, value: str | bytes | os.PathLike[str]) -> str:
    path = os.fsdecode(value)
    if "\0" in path:  # where C would end it
        raise ValueError(f"{name}: a null character in {path!r}")
    return path


def _sequences(ids: Any) -> list[Any]:
    rows = [np.asarray(row).tolist() for row in ids]
    return rows if any(isinstance(row, list) for row in rows) else [rows]


def _saved(value: Any, file: Path) -> str:
    file.write_text(json.dumps(value), encoding="utf-8")
    return str(file)


def _run(words: list[str], progress: Callable[..., Any] | None) -> dict[str, Any]:
    remarks: list[bytes] = []
    try:
        printed = _dofla.run([os.fsencode(word) for word in words], progress, remarks.append)
    finally:
        for remark in remarks:
            warnings.warn(remark.decode("utf-8", "replace"), stacklevel=3)
    return json.loads(printed)
