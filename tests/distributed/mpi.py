"""mpirun for tests: dofla on several ranks of this machine.

mpi.py BINARY RANKS PROGRAM runs another program so, where the binary is built with MPI."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from dofla import BINARY, SCRATCH  # noqa: E402

SKIPPED = 77
MPIRUN = shutil.which("mpirun")
# Tests run side by side: nobody may bind ranks to the same cores. Root may run this in CI. Where the kernel forbids
# one process to read another's memory, shared memory does.
OPTIONS = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
           "--mca", "btl_vader_single_copy_mechanism", "none"]
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}


def skip_without_mpi():
    if MPIRUN is None:
        print("skipped: there is no mpirun (openmpi-bin)")
        sys.exit(SKIPPED)
    alone = subprocess.run([BINARY, "--version"], env={**ENVIRONMENT, "OMPI_COMM_WORLD_SIZE": "2"}, capture_output=True,
                           text=True, check=False)
    if "no MPI" in alone.stderr:
        print("skipped: dofla was built without MPI")
        sys.exit(SKIPPED)


def command(ranks, *arguments, first="", options=()):
    """mpirun's command line. `first` is what the shell of every rank does before dofla; $RANK is its number."""
    script = f'RANK=$OMPI_COMM_WORLD_RANK; {first or ":"}; exec "$0" "$@"'
    return [MPIRUN, *OPTIONS, *options, "-n", str(ranks), "/bin/sh", "-c", script, str(BINARY), *map(str, arguments)]


def start(ranks, *arguments, first=""):
    return subprocess.Popen(command(ranks, *arguments, first=first), env=ENVIRONMENT, cwd=SCRATCH, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(ranks, *arguments, code=0, first=""):
    """Standard output and standard error of a command that must end with `code` (None: any but 0)."""
    done = subprocess.run(command(ranks, *arguments, first=first), env=ENVIRONMENT, cwd=SCRATCH, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, check=False)
    as_expected = done.returncode != 0 if code is None else done.returncode == code
    assert as_expected, f"exit {done.returncode}: {' '.join(map(str, arguments))}\n{done.stderr}"
    return done.stdout, done.stderr


def said(errors):
    """The lines of dofla itself on standard error."""
    return [line for line in errors.splitlines() if line.startswith("dofla:")]


if __name__ == "__main__":
    skip_without_mpi()
    sys.exit(subprocess.run([MPIRUN, *OPTIONS, "-n", *sys.argv[1:]], env=ENVIRONMENT, check=False).returncode)
