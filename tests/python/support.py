"""What the tests of the Python module share: the module, small inputs, and the program to compare with.

usage: NAME_test.py BINARY      with the module on PYTHONPATH; without it or numpy the tests are skipped
"""

import importlib.util
import sys
from pathlib import Path

try:
    import dofla
    import numpy
except ImportError as missing:
    if getattr(missing, "name", None) not in ("dofla", "numpy"):
        raise
    print(f"skipped: {missing}; `make python` installs what it needs and builds it")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]


def _load(path):
    spec = importlib.util.spec_from_file_location("program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


program = _load(ROOT / "tests/cli/dofla.py")  # the binary, which has the package's name there
FOLDER = program.MODEL
SCRATCH = program.SCRATCH
TEXT = program.text_file(80)
SHORT = dict(data=TEXT, length=32, held_out=2)
DISTILL = dict(SHORT, cost=8, strategy="fix", steps=3, batch=2)


def new_path(name="out"):
    return program.new_path(name)
